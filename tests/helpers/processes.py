"""Processes forked from this one, which has loaded everything: a start takes milliseconds, not seconds."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedkeel import cli


def forked(work: Callable[[], object], log: Path) -> int:
    """The process that does it, in a group of its own, with signals as in a terminal; its output goes to a file."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(out, stream)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w") for stream in (1, 2))
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        os.write(2, repr(error).encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def begin(folder: Path, *words: str) -> int:
    """A command that works in that folder; its output goes to the file `log` there."""

    def command() -> None:
        os.chdir(folder)
        sys.argv = ["fedkeel", *words]
        cli.main()

    return forked(command, folder / "log")


def ended(process: int) -> int:
    """Its exit code, negative for a signal."""
    for _ in range(3000):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError("it did not end")


def nobody_left(group: int) -> bool:
    """Whether everybody of the group dies within a while."""
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False
