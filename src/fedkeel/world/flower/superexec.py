"""Flower's SuperExec, which starts a process for each function of an app, but hides their tokens from other users.

Who has the token of a task can do what the task may do: fetch the model, and answer in the name of the site. Flower
puts it into the command line, and every user of a machine can read the command lines of all processes.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_OPTION, _FILE = "--token", "--token-file"


class Hiding(subprocess.Popen[Any]):
    """Hands a token over in a file without a name, which only the new process can open."""

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        if _OPTION not in args:
            super().__init__(args, **options)
            return
        place = args.index(_OPTION) + 1
        number = os.memfd_create("token")
        try:
            os.write(number, args[place].encode())
            words = [*args[: place - 1], _FILE, f"/proc/self/fd/{number}", *args[place + 1 :]]
            super().__init__(words, pass_fds=[number], **options)
        finally:
            os.close(number)


def main(words: Sequence[str]) -> None:
    """Become a program of Flower, given by its path and arguments."""
    subprocess.Popen = Hiding  # type: ignore[assignment,misc]
    sys.argv = [*words]
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
