"""Workers and machines that are lost: how many, and what Ray says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedkeel.errors import label, words


@dataclass
class Losses:
    """What was lost, and made good."""

    workers: int = 0
    repeated: int = 0
    """Stacks that were trained again."""


def kinds(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises if a worker, its machine or something on it is gone."""
    known = ray.exceptions
    return (
        known.RayActorError,
        known.ObjectLostError,
        known.WorkerCrashedError,
        known.NodeDiedError,
        known.OutOfMemoryError,
        known.ActorUnschedulableError,
    )


def last_line(error: Exception) -> str:
    """The last line of what Ray says about a loss: the first ones name actors by long numbers."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return label(lines[-1]) if lines else words(error)
