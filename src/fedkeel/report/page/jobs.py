"""The sections about jobs: learning rates, staleness, weights, devices, the timeline, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from fedkeel.errors import InputError
from fedkeel.record.runs import RunRecord
from fedkeel.report import timeline
from fedkeel.report.page import arrivals
from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import number, places
from fedkeel.report.page.files import Version
from fedkeel.report.page.sites import names
from fedkeel.study.results import Outcome

MOST_ROWS, FEWEST_ROWS, ALL_ROWS = 200_000, 10_000, 1_000_000
"""Uploads that are read: of a run at most, of a run even where there are many, and of all."""
LIVE_ROWS = 20_000
"""Of a run that is going on, which is read again and again."""
MOST_LANES, MOST_SPANS, MOST_TIMELINES = 20, 500, 24
LENGTHS = 8
"""Of a mean job, that the timeline shows."""
TIMELINE_ROWS = 4_000
"""Jobs that are looked at for that."""
KINDS = tuple(timeline.STYLES)
ARRIVALS, UNFINISHED, REFUSED = "clients.jsonl", "unfinished.jsonl", "refused.jsonl"


def jobs(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of every cell what its first run's uploads say together."""
    most = max(FEWEST_ROWS, min(MOST_ROWS, ALL_ROWS // max(1, len(cells))))
    found = []
    for cell in cells:
        if cell.first is None or cell.record is None:
            continue
        told = arrivals.arrived(cell.record, min(most, LIVE_ROWS) if cell.first.state == "going on" else most)
        parts = {
            "rates": arrivals.over_rounds(told.rates),
            "weights": arrivals.over_rounds(told.weights),
            "weight_at": arrivals.over_staleness(told),
            "staleness": arrivals.staleness(told),
            "devices": arrivals.devices(told),
        }
        if parts["devices"]:
            parts["devices"]["names"] = names(cell.record, parts["devices"]["clients"])
        known = {name: part for name, part in parts.items() if part}
        found.append({**cell.key, "seed": cell.first.seed, "rows": told.rows, "cut": told.cut, **known})
    return found


def timelines(cells: Sequence[Cell]) -> dict[str, Any]:
    """What devices of every cell's first run did at the beginning."""
    shown = [cell for cell in cells if cell.record is not None][:MOST_TIMELINES]
    return {"kinds": list(KINDS), "runs": [each for cell in shown if (each := _timeline(cell))]}


def _timeline(cell: Cell) -> dict[str, Any] | None:
    assert cell.first is not None
    assert cell.record is not None
    told = _spans(tuple(Version.of(cell.record.path / name) for name in (ARRIVALS, UNFINISHED, REFUSED)))
    if told is None:
        return None
    end = min(told.end, LENGTHS * told.mean_seconds)
    inside = [span for span in told.spans if span[2] < end]
    working = {span[0] for span in inside}
    order = [client for client in told.clients if client in working]
    lanes = [order[place] for place in places(len(order), MOST_LANES)]
    lane = {client: place for place, client in enumerate(lanes)}
    drawn = sorted((span for span in inside if span[0] in lane), key=lambda span: span[2])[:MOST_SPANS]
    return {
        **cell.key,
        "seed": cell.first.seed,
        "end": number(end),
        "lanes": lanes,
        "names": names(cell.record, lanes),
        "of": len(order),
        "spans": [[lane[c], KINDS.index(what), number(a), number(min(b, end))] for c, what, a, b in drawn],
        "lost": [[lane[c], number(at)] for c, at in told.lost if c in lane and at <= end],
        "refused": [[lane[c], number(at)] for c, at in told.refused if c in lane and at <= end],
    }


@lru_cache(maxsize=64)
def _spans(files: tuple[Version | None, ...]) -> timeline.Timeline | None:
    """Of these files, uploads first; None where nothing took any time."""
    arrived = files[0]
    if arrived is None:
        return None
    try:
        return timeline.spans(_Beginning(arrived.path.parent, {}, []))
    except InputError:
        return None


@dataclass(frozen=True)
class _Beginning(RunRecord):
    """A run as far as the timeline needs it."""

    def arrivals(self) -> Iterator[dict[str, Any]]:
        yield from islice(super().arrivals(), TIMELINE_ROWS)

    def unfinished(self) -> Iterator[dict[str, Any]]:
        yield from islice(super().unfinished(), TIMELINE_ROWS)

    def refused(self) -> Iterator[dict[str, Any]]:
        yield from islice(super().refused(), TIMELINE_ROWS)


def faults(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of every cell, jobs that never arrived and uploads that were turned away, by reason and over all seeds."""
    found = []
    for cell in cells:
        lost, turned_away, declined = Counter[str](), Counter[str](), 0
        runs = [each for each in cell.outcomes if each.record is not None]
        for each in runs:
            lost += _counted(each, UNFINISHED, "why")
            turned_away += _counted(each, REFUSED, "reason")
            declined += int(each.summary.get("updates_refused") or 0)
        if lost or turned_away or declined:
            told = {"lost": dict(lost), "refused": dict(turned_away), "declined": declined}
            found.append({**cell.key, "runs": len(runs), **told})
    return found


def _counted(outcome: Outcome, name: str, key: str) -> Counter[str]:
    version = Version.of(outcome.folder / name)
    return Counter() if version is None else _count(version, key)  # older runs have no such file


@lru_cache(maxsize=4096)
def _count(version: Version, key: str) -> Counter[str]:
    run, name = RunRecord(version.path.parent, {}, []), version.path.name
    with run.told_if_damaged(name):
        rows = run.unfinished() if name == UNFINISHED else run.refused()
        return Counter(str(row[key]) for row in rows)
