"""Runs on real machines: whose clock their times are of, and what each site did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from fedkeel.errors import label
from fedkeel.record.runs import RunRecord
from fedkeel.record.schema import LABELS
from fedkeel.record.sites import missing, real, rounds, sites
from fedkeel.report.page.cells import Cell
from fedkeel.study.results import Results

Clock = Literal["virtual", "wall", "both"]


def clock(results: Results) -> Clock:
    """Virtual in simulations, the server's on real machines."""
    kinds = {real(run.record) for run in results.outcomes if run.record is not None}
    return "both" if len(kinds) > 1 else "wall" if True in kinds else "virtual"


def by_site(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of every cell on real machines: its sites, and sentences that name those that were missing."""
    found = []
    for cell in cells:
        record = cell.record
        if record is not None and real(record):
            each = sites(record)
            rows = [
                [label(site.name), site.samples, site.updates, site.lost, site.tests, site.tested_last] for site in each
            ]
            found.append({**cell.key, "sites": rows, "missing": missing(each, rounds(record))})
    return found


def names(record: RunRecord, clients: Sequence[int]) -> list[str]:
    """What clients are called, or else their numbers."""
    known: list[Any] = []
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        known = list(json.loads((record.path / LABELS).read_text(encoding="utf-8"))["client_names"])
    return [label(str(known[client])) if client < len(known) else str(client) for client in clients]
