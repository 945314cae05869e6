"""The paper's figures beside ours, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.statistics import mean_wasserstein
from fedkeel.runner.prepare import federate
from fedkeel.study.papers.catalogue import Printed
from fedkeel.study.papers.plan import ItemPlan, Planned
from fedkeel.study.papers.quantities import QUANTITIES, Name
from fedkeel.study.plan import Comparison, Measure
from fedkeel.study.results import Outcome, collect
from fedkeel.study.statistics import Interval, interval

FAILED, PENDING, UNTOLD, NOT_REACHED = "failed", "not run yet", "not recorded", "not reached"
FAILURES = (FAILED, PENDING, UNTOLD)
"""The beginning of a line's state where a figure should be there and is missing."""


@dataclass(frozen=True)
class Line:
    """One figure of the paper, and ours."""

    row: str
    column: str
    quantity: Name
    printed: Printed
    ours: Interval | None
    """The mean over the seeds that have one."""
    seeds: int
    """The number of seeds that were asked for."""
    state: str
    """Why there is no figure of ours, or why seeds are missing in it, if that is so."""
    smaller: tuple[str, ...] = ()
    stand_in: str = ""
    differs: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        """The paper's figure as it is printed, or the word in its place."""
        return self.printed if isinstance(self.printed, str) else f"{self.printed:,.10g}"

    @property
    def own(self) -> str:
        """Ours, with its interval."""
        if self.ours is None:
            return self.state
        write = QUANTITIES[self.quantity].text
        return write(self.ours.mean) + ("" if self.ours.half is None else f" ± {write(self.ours.half)}")

    @property
    def counted(self) -> str:
        """The number of seeds behind our figure; some may not have reached a target."""
        count = 0 if self.ours is None else self.ours.count
        return f"{count} of {self.seeds}" if count < self.seeds else f"{self.seeds or ''}"

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, where both are numbers."""
        return None if self.ours is None or isinstance(self.printed, str) else self.ours.mean - self.printed


@dataclass(frozen=True)
class Labels:
    """Which clients hold which labels, in a row about data."""

    row: str
    counts: NDArray[np.int64]
    """[clients, classes], with the first seed."""


def lines(made: ItemPlan, store: Path) -> list[Line]:
    """The results of the runs in `store`, beside the paper's figures."""
    return [line for cell in made.cells for line in _of_runs(made, cell, store)]


def data_lines(made: ItemPlan) -> tuple[list[Line], list[Labels]]:
    """The same for an item about data: it is dealt out, and nothing is trained."""
    found, labels = [], []
    for cell in made.cells:
        if cell.left_out:
            found.append(_line(cell, "Wasserstein distance", 0, [], 0, cell.left_out))
            continue
        counts = [federate(case.experiment).label_counts() for case in cell.cases]
        distances = [mean_wasserstein(each) for each in counts]
        found.append(_line(cell, "Wasserstein distance", 0, distances, len(counts), ""))
        labels.append(Labels(cell.cell.row, counts[0]))
    return found, labels


def _of_runs(made: ItemPlan, cell: Planned, store: Path) -> list[Line]:
    ended: Sequence[Outcome] = ()
    state = cell.left_out
    if not state:
        target = cell.cell.settings.get("target_accuracy")
        outcomes = collect(Comparison(made.item.path, cell.cases, Measure(target=target)), store).outcomes
        ended = [outcome for outcome in outcomes if outcome.state == "finished"]
        state = _state(outcomes)
    result = []
    for place, name in enumerate(made.item.shows):
        values = [value for outcome in ended if (value := QUANTITIES[name].read(outcome)) is not None]
        unread = NOT_REACHED if QUANTITIES[name].of_target else UNTOLD
        told = state or ("" if values else unread)
        result.append(_line(cell, name, place, values, len(cell.cases), told))
    return result


def _state(outcomes: Sequence[Outcome]) -> str:
    """Why a run is not finished, if one is not."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if failed:
        seeds = f" in {len(failed)} of {len(outcomes)} seeds" if len(outcomes) > 1 else ""
        return f"{FAILED}{seeds}: {failed[0].failure}"
    return "" if all(outcome.state == "finished" for outcome in outcomes) else PENDING


def _line(cell: Planned, name: Name, place: int, values: Sequence[float], seeds: int, state: str) -> Line:
    ours = interval(values) if values else None
    marks = (cell.smaller, cell.stand_in, cell.cell.differs)
    return Line(cell.cell.row, cell.cell.column, name, cell.cell.printed[place], ours, seeds, state, *marks)
