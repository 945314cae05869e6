"""The process's standard streams, in whatever state a shell hands them over."""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress


def prepare() -> None:
    """Give closed streams the null device, so that no file of a run becomes standard output, and escape odd letters."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Write out what is printed so far; an OSError if that fails."""
    if sys.stdout is not None:
        sys.stdout.flush()


def settle() -> None:
    """Give up what cannot be written, so that Python does not stumble over it when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reader_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
