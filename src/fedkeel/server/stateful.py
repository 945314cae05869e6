"""What a checkpoint holds of an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class Stateful:
    """Has a state: the attributes that it names; everything else follows from the experiment and its data."""

    saved: ClassVar[tuple[str, ...]]

    def snapshot(self) -> dict[str, Any]:
        """As it is now: plain values and tensors, not copied, so they are to be written before anything goes on."""
        return {name: getattr(self, name) for name in self.saved}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set these attributes to what a snapshot holds."""
        for name in self.saved:
            setattr(self, name, state[name])
