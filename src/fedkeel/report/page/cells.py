"""The cells of a comparison: one for each scene and variant, and the run that stands for its cell in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.record.runs import RunRecord
from fedkeel.study.results import Outcome, Results


@dataclass(frozen=True)
class Cell:
    """The runs of a variant in a scene, one for each seed."""

    scene: int
    """Its place among the scenes."""
    variant: int
    """Its place among the variants."""
    outcomes: Sequence[Outcome]

    @property
    def first(self) -> Outcome | None:
        """The first run that has been tested: where seeds cannot be averaged, it stands for all."""
        return next((each for each in self.outcomes if each.history), None)

    @property
    def record(self) -> RunRecord | None:
        """Of that run."""
        return self.first.record if self.first else None

    @property
    def begun(self) -> RunRecord | None:
        """Of the first run that was begun, if none has been tested."""
        return self.record or next((each.record for each in self.outcomes if each.record), None)

    @property
    def described(self) -> dict[str, Any] | None:
        """The settings of that run."""
        return self.begun.experiment if self.begun else None

    @property
    def key(self) -> dict[str, int]:
        """Where it belongs, for the page."""
        return {"scene": self.scene, "variant": self.variant}


def cells(results: Results) -> list[Cell]:
    """All that have a run."""
    found = [
        Cell(place, number, results.of(scene, variant))
        for place, scene in enumerate(results.scenes)
        for number, variant in enumerate(results.variants)
    ]
    return [cell for cell in found if cell.outcomes]
