"""A note in the run folder that training diverged: a run that was only stopped has none."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from fedkeel.errors import DivergenceError

DIVERGED = "diverged.json"


def note(folder: Path, error: BaseException | None) -> None:
    """Leave the note if a run ended with this error; a disk that is full must not hide the error."""
    if isinstance(error, DivergenceError):
        with suppress(OSError):
            (folder / DIVERGED).write_text(json.dumps({"error": str(error)}) + "\n", encoding="utf-8")


def remove(folder: Path) -> None:
    """Remove the note, as the run goes on."""
    (folder / DIVERGED).unlink(missing_ok=True)


def divergence(folder: Path) -> str | None:
    """What the note says; None for a run that did not diverge."""
    try:
        told = json.loads((folder / DIVERGED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):  # it was cut short: that it is there says enough
        return "training diverged"
    return str(told["error"]) if isinstance(told, dict) and "error" in told else "training diverged"
