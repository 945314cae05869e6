"""When real machines were away, as a trace can tell it: one absence of each, in a period much longer than the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from fedkeel.record.rows import Unfinished
from fedkeel.world.fleet.generators import Column

Absence = tuple[float, float]
"""From when to when; until infinity if it did not come back."""
PERIODS = 100.0
"""A device is away once in so many times the length of the run; who did not come back is away for half of that."""
SHARE = 0.01
"""Shorter absences, as a share of the run, do not count."""
NAMED = 10
"""Clients that a sentence lists."""


def longest(absences: Mapping[int, Sequence[Absence]], until: float) -> dict[int, Absence]:
    """Of each client that was away in a run of so many seconds, the longest absence."""
    seconds = {client: [min(came, until) - left for left, came in own] for client, own in absences.items()}
    return {
        client: absences[client][int(np.argmax(own))]
        for client, own in seconds.items()
        if own and max(own) > SHARE * until
    }


def windows(away: Mapping[int, Absence], clients: int, until: float) -> dict[str, Column]:
    """The columns of a trace: devices are on but for their absence."""
    if not away:
        return {}
    period = PERIODS * max(until, 1.0)
    share, phase = np.ones(clients), np.zeros(clients)
    for client, (left, came) in away.items():
        phase[client] = min(came, period / 2)
        share[client] = 1 - (phase[client] - left) / period
    return {"availability": share, "availability_period": np.full(clients, period), "availability_phase": phase}


def explains(absence: Absence | None, job: Unfinished) -> bool:
    """Whether a job may have been lost because its device was away."""
    return absence is not None and absence[0] <= job.ended and job.dispatched <= absence[1]


def notes(away: Mapping[int, Absence], absences: Mapping[int, Sequence[Absence]]) -> list[str]:
    """Who was away when, and what of that the trace lacks."""
    if not away:
        return []
    each = [
        f"{client} (from {left:.4g} s" + (" on)" if came == inf else f" to {came:.4g} s)")
        for client, (left, came) in sorted(away.items())
    ]
    more = f" and {len(each) - NAMED} more" if len(each) > NAMED else ""
    found = [f"clients were away, and what they lost by that is no dropout: {', '.join(each[:NAMED])}{more}"]
    if any(len(absences[client]) > 1 for client in away):
        found.append("of several absences of a client, the trace has the longest")
    return found
