"""What a run's uploads say together: learning rates, staleness, weights, and how long devices took.

The rows are read one by one and only sums are kept, so a run with millions of them needs little memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any

from fedkeel.record.runs import RunRecord
from fedkeel.report.page.compact import number, numbers, places
from fedkeel.report.page.files import Version

MOST_ROUNDS = 150
"""Places of a curve over rounds."""
MOST_BARS = 40
"""Of a histogram."""
MOST_DEVICES = 120
"""Whose times are drawn."""


@dataclass
class Range:
    """The mean, the least and the most of what it was told."""

    total: float = 0.0
    count: int = 0
    least: float = inf
    most: float = -inf

    def add(self, value: float) -> None:
        """Tell it a value."""
        self.total += value
        self.count += 1
        self.least, self.most = min(self.least, value), max(self.most, value)

    def merge(self, other: Range) -> None:
        """Tell it all that another one was told."""
        self.total += other.total
        self.count += other.count
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)

    @property
    def mean(self) -> float:
        """Of at least one value."""
        return self.total / self.count


@dataclass
class Device:
    """Seconds of all jobs of a device, part by part."""

    jobs: int = 0
    download: float = 0.0
    training: float = 0.0
    upload: float = 0.0

    def add(self, row: dict[str, Any]) -> None:
        """Another job that arrived; waiting for a fresh model is part of its training."""
        began, finished = row.get("began", row["dispatched"]), row.get("finished", row["arrived"])
        self.jobs += 1
        self.download += began - row["dispatched"]
        self.training += finished - began
        self.upload += row["arrived"] - finished

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Of a mean job."""
        return self.download / self.jobs, self.training / self.jobs, self.upload / self.jobs


@dataclass
class Arrived:
    """The uploads of a run."""

    rows: int = 0
    cut: bool = False
    """Whether there are more rows than were read."""
    rates: dict[int, Range] = field(default_factory=dict)
    """By round."""
    weights: dict[int, Range] = field(default_factory=dict)
    """Likewise, of uploads that the server rule took."""
    weight_at: dict[int, Range] = field(default_factory=dict)
    """By staleness."""
    accepted: Counter[int] = field(default_factory=Counter)
    """Uploads by staleness."""
    refused: Counter[int] = field(default_factory=Counter)
    """Likewise, those that the server rule did not take."""
    devices: dict[int, Device] = field(default_factory=dict)

    def add(self, row: dict[str, Any]) -> None:
        """Another row of `clients.jsonl`."""
        self.rows += 1
        of_round = self.rates.setdefault(row["round"], Range())
        for rate in row.get("learning_rates", ()):
            of_round.add(float(rate))
        taken = row.get("accepted", True)
        (self.accepted if taken else self.refused)[row["staleness"]] += 1
        weight = row.get("weight")
        if taken and weight is not None:
            self.weights.setdefault(row["round"], Range()).add(weight)
            self.weight_at.setdefault(row["staleness"], Range()).add(weight)
        self.devices.setdefault(row["client"], Device()).add(row)


def arrived(run: RunRecord, most: int) -> Arrived:
    """The first `most` uploads of a run; a file that did not change is read once."""
    version = Version.of(run.path / "clients.jsonl")
    return Arrived() if version is None else _read(version, most)


@lru_cache(maxsize=512)
def _read(version: Version, most: int) -> Arrived:
    told, run = Arrived(), RunRecord(version.path.parent, {}, [])
    with run.told_if_damaged("clients.jsonl"):
        rows = run.arrivals()
        for row in islice(rows, most):
            told.add(row)
        told.cut = next(rows, None) is not None
    return told


def over_rounds(by_round: dict[int, Range]) -> dict[str, Any] | None:
    """Mean, least and most by round; of many rounds, neighbours are put together."""
    known = sorted(each for each in by_round if by_round[each].count)
    if not known:
        return None
    groups = _groups(known, MOST_ROUNDS)
    return _columns([group[-1] for group in groups], (_together(by_round, group) for group in groups))


def over_staleness(told: Arrived) -> dict[str, Any] | None:
    """The weight by staleness, where that differs at all."""
    known = sorted(told.weight_at)
    if len(known) < 2:
        return None
    groups = _groups(known, MOST_BARS)
    return _columns([group[0] for group in groups], (_together(told.weight_at, group) for group in groups))


def staleness(told: Arrived) -> dict[str, Any] | None:
    """How many uploads had which staleness: bars of equal width; nothing where no upload was stale."""
    both = told.accepted + told.refused
    most = max(both, default=0)
    if not most:
        return None
    width = -(-(most + 1) // MOST_BARS)
    bars = range(0, most + 1, width)
    count = sum(both.values())
    return {
        "width": width,
        "accepted": [sum(told.accepted[at] for at in range(bar, bar + width)) for bar in bars],
        "refused": [sum(told.refused[at] for at in range(bar, bar + width)) for bar in bars],
        "mean": number(sum(at * each for at, each in both.items()) / count),
        "most": most,
    }


def devices(told: Arrived) -> dict[str, Any] | None:
    """Seconds of a mean job, from the fastest device to the slowest; nothing where jobs take no time."""
    order = sorted(told.devices, key=lambda client: (sum(told.devices[client].seconds), client))
    if not order or not sum(told.devices[order[-1]].seconds):
        return None
    shown = [order[place] for place in places(len(order), MOST_DEVICES)]
    download, training, upload = zip(*(told.devices[client].seconds for client in shown), strict=True)
    return {
        "clients": shown,
        "jobs": [told.devices[client].jobs for client in shown],
        "of": len(order),
        "download": numbers(download),
        "training": numbers(training),
        "upload": numbers(upload),
    }


def _groups(keys: Sequence[int], most: int) -> list[Sequence[int]]:
    """Neighbours together, so that there are at most so many groups."""
    width = -(-len(keys) // most)
    return [keys[first : first + width] for first in range(0, len(keys), width)]


def _together(by_key: dict[int, Range], group: Sequence[int]) -> Range:
    whole = Range()
    for key in group:
        whole.merge(by_key[key])
    return whole


def _columns(x: Sequence[int], ranges: Iterable[Range]) -> dict[str, Any]:
    known = list(ranges)
    return {
        "x": list(x),
        "mean": [number(each.mean) for each in known],
        "low": [number(each.least) for each in known],
        "high": [number(each.most) for each in known],
    }
