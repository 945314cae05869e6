"""Standard output, as all commands write to it."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.status import Status

HZ = 8
"""How often a spinner turns in a second."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more: fall silent, and let the training go on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = _Console(highlight=False)


def animated() -> bool:
    """Whether something may move: on a terminal that can do that, unless the command is to be quiet."""
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


def waiting(step: str) -> AbstractContextManager[Status | None]:
    """A spinner with the name of a step, which vanishes; nothing where nothing may move."""
    if not animated():
        return nullcontext()
    kind = "dots" if console.encoding.startswith("utf") else "line"
    return console.status(step, spinner=kind, refresh_per_second=HZ)
