"""Fine-tuning: plain SGD on all of a client's model or on a part of it, before the model is tested."""

from __future__ import annotations

from fedkeel.methods.client import ClientRule
from fedkeel.params import Part


class FineTuning(ClientRule):
    """Every client trains for itself; nothing travels."""

    part: Part = "all"
    """The part of the model that is trained."""

    @property
    def trains(self) -> Part:
        return self.part
