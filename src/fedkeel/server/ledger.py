"""The counts of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedkeel.server.stateful import Stateful


@dataclass
class Ledger(Stateful):
    """What has happened so far, in numbers."""

    saved = ("bytes_up", "bytes_down", "updates", "refused", "turned_away", "samples", "lost", "left")

    bytes_up: int = 0
    """Bytes of everything that devices sent, also in vain."""
    bytes_down: int = 0
    updates: int = 0
    """Uploads that passed the gate."""
    refused: int = 0
    """Uploads that passed the gate but were discarded by the server rule."""
    turned_away: dict[str, int] = field(default_factory=dict)
    """Uploads that the gate refused, by reason."""
    samples: int = 0
    """Samples that training went through; a sample counts every time."""
    lost: int = 0
    """Jobs that ended without a result."""
    left: int = 0
    """Jobs that were in flight at the end."""

    def turn_away(self, reason: str) -> None:
        """The gate refuses an upload."""
        self.turned_away[reason] = self.turned_away.get(reason, 0) + 1
