"""What a checkpoint holds of an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class Stateful:
    """Has a state: the attributes that it names; everything else follows from the experiment and its data."""

    saved: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    """Attributes that have states of their own."""

    def snapshot(self) -> dict[str, Any]:
        """The current state: plain values and tensors, not copied, so write them before anything changes."""
        own = {name: getattr(self, name) for name in self.saved}
        return {**own, **{name: getattr(self, name).snapshot() for name in self.parts}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set these attributes to what a snapshot holds."""
        for name in self.saved:
            setattr(self, name, state[name])
        for name in self.parts:
            getattr(self, name).restore(state[name])
