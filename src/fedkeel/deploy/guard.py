"""Ends what a supervisor has started when the supervisor is gone, however it went.

A supervisor starts this file as a program of its own and holds the other end of its standard input. That end closes
when the supervisor ends, even by SIGKILL. Then every process with the supervisor's mark in its environment is ended.
Children inherit the mark, so grandchildren are found as well, also in sessions of their own.

This file imports nothing of fedkeel, so that the program starts at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

MARK = "FEDKEEL_DEPLOY_MARK"
"""The variable that holds the mark: the supervisor's, a dot, the wave, a dot, the number of the process, a dot."""
WAVES = (1, 0)
"""In this order they end: what is in the last wave serves the others until then."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_PROC = "/proc"
_POLL = 0.05


def marked(mark: str, naming: str = "") -> list[int]:
    """The living processes whose mark begins so; of these, those with a word in their command line."""
    wanted = f"\0{MARK}={mark}".encode()
    found = []
    for name in os.listdir(_PROC):
        if name.isdigit() and int(name) != os.getpid() and wanted in b"\0" + _read(name, "environ"):
            if naming and naming.encode() not in _read(name, "cmdline"):
                continue
            found.append(int(name))
    return found


def _read(process: str, what: str) -> bytes:
    """Of another user's process, a zombie or one that is gone: nothing."""
    try:
        with open(f"{_PROC}/{process}/{what}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def tell(mark: str, number: int) -> None:
    """Send a signal to all that have a mark."""
    for process in marked(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def gone(mark: str, seconds: float, hurried: Callable[[], bool] = lambda: False) -> bool:
    """Wait until nothing has a mark; whether that is so after these seconds."""
    end = time.monotonic() + seconds
    while marked(mark):
        if time.monotonic() >= end or hurried():
            return False
        time.sleep(_POLL)
    return True


def sweep(mark: str, seconds: float = 10.0) -> bool:
    """Kill all that have a mark, and what they start meanwhile; whether nothing is left."""
    end = time.monotonic() + seconds
    while marked(mark) and time.monotonic() < end:
        tell(mark, signal.SIGKILL)
        time.sleep(_POLL)
    return not marked(mark)


def main(mark: str) -> None:
    """Wait for the supervisor's end, then end what has its mark."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    for wave in WAVES:
        tell(f"{mark}.{wave}.", signal.SIGTERM)
        if not gone(f"{mark}.{wave}.", GRACE):
            sweep(f"{mark}.{wave}.")
    sweep(mark)


if __name__ == "__main__":
    main(sys.argv[1])
