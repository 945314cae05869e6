"""Why the server function or a silo ended, from what it has written last."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fedkeel.errors import (
    LONGEST_WORDS,
    AbsentError,
    DivergenceError,
    FedkeelError,
    InputError,
    StoppedError,
    TimeLimitError,
)
from fedkeel.record.divergence import divergence
from fedkeel.world.remote.lines import OURS

CANNOT = "cannot do what the server asks for"
"""What a silo tells its own people, with the reason."""
_KNOWN: dict[str, type[FedkeelError]] = {
    "InputError": InputError,
    "AbsentError": AbsentError,
    "DivergenceError": DivergenceError,
    "TimeLimitError": TimeLimitError,
    "StoppedError": StoppedError,
}
"""Errors that another start, at once, would meet again."""
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit))(?:: (.*))?$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Verdict:
    """An error to raise, and whether another start is of no use."""

    error: FedkeelError
    final: bool


def verdict(said: str, out: Path, log: Path) -> Verdict:
    """From the end of a log and the run folder."""
    diverged = divergence(out) if out.is_dir() else None
    if diverged is not None:
        return Verdict(DivergenceError(diverged), True)
    found = [*_RAISED.finditer(_COLOUR.sub("", said))]
    if not found:
        return Verdict(FedkeelError(f"the server function ended without a word; see {log}"), False)
    name, told = found[-1][1], (found[-1][2] or "").strip()
    kind = _KNOWN.get(name)
    if kind is not None:
        return Verdict(kind(told or name), True)
    return Verdict(FedkeelError(f"the server function failed ({name}{f': {told}' if told else ''}); see {log}"), False)


def last_words(said: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in _COLOUR.sub("", said).splitlines() if line.strip()]
    return lines[-1].removeprefix(OURS)[:LONGEST_WORDS] if lines else ""


def trouble(said: str) -> str:
    """What a silo could not do, if it has said so."""
    found = [line for line in said.splitlines() if line.startswith(OURS) and f" {CANNOT}: " in line]
    return found[-1].removeprefix(OURS) if found else ""
