"""One process at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

with suppress(ImportError):
    import fcntl

_PATIENCE = 50
_SECONDS = 0.1


class BusyError(OSError):
    """Another process has it."""


def lock(file: int, wait: bool = False) -> None:
    """Have an open file alone until it is closed or this process dies; where the system has no such locks, do nothing.

    A killed run's worker processes hold its lock until they have died, too: with `wait`, they are given a few seconds.
    """
    if "fcntl" not in globals():
        return
    for attempt in range(_PATIENCE):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait or attempt == _PATIENCE - 1:
                raise BusyError("another process has it") from None
            time.sleep(_SECONDS)
        else:
            return


@contextmanager
def one_by_one(path: Path) -> Iterator[None]:
    """One process after the other, by a file that is made for it; where the system has no such locks, all at once."""
    with path.open("w") as file:
        if "fcntl" in globals():
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Whether a process has this file; where there are no such locks, that cannot be ruled out.

    For a moment nobody else can lock it. Who resumes a run waits for that. A run that is new does not, so its folder is
    looked at only when its description is there, which is written after the lock was taken.
    """
    if "fcntl" not in globals():
        return True
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # somebody has it, or the file system knows no locks
        return True
    finally:
        os.close(file)
    return False
