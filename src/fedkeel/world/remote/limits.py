"""How long the server waits for a job on a real machine."""

from __future__ import annotations

from dataclasses import dataclass

PAUSES = 10
"""Looks for answers between a failure and the next try, but at most a second; twice as long after each further one."""
LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Limits:
    """Seconds, and how often something is tried again."""

    job: float | None = None
    """For a job; None: as measured."""
    first: float = 1800.0
    """For the first job of a client, where that is measured; for later ones, the longest that may come of it."""
    least: float = 60.0
    """The shortest that may come of measuring."""
    margin: float = 3.0
    """How many times as long as its longest one so far a client's job may take."""
    retries: int = 2
    """How often a message that failed is sent again."""
    absent: float = 60.0
    """How long a job that must be sent waits for a node that is away."""
    poll: float = 0.1
    """Between two looks for answers."""
    away: float = 600.0
    """How long all nodes may be out of reach in one go."""
    most: int | None = None
    """Bytes of the largest answer; None: what the method and the model need."""

    def pause(self, failures: int) -> float:
        """Before the next try after so many failures in a row."""
        return float(min(min(PAUSES * self.poll, 1.0) * 2 ** (min(max(1, failures), 20) - 1), LONGEST_PAUSE))

    def of(self, longest: float | None) -> float:
        """For the next job of a client whose longest one so far took so many seconds."""
        if self.job is not None:
            return self.job
        return self.first if longest is None else max(self.least, min(self.first, self.margin * longest))
