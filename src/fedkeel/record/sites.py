"""What each site did in a run on real machines, from the files of the run: so a resumed run counts all of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from fedkeel.errors import InputError, label
from fedkeel.record.places import DEPLOYMENT
from fedkeel.record.rows import EXCUSED
from fedkeel.record.runs import RunRecord

SAMPLES, TESTS = "samples", "tests"
"""Keys of `deployment.json`: by site, how many rows it has for training and for testing."""
WAITS = "waits"
"""Likewise, how many seconds a small message and its answer are on their way."""
LOST = "lost"
"""Likewise, the jobs after which it has lost what it kept."""
PRESENCE = "presence"
"""Likewise, at which seconds of the run it came and left, in turn."""


@dataclass(frozen=True)
class Site:
    """A client on a real machine."""

    name: str
    samples: int | None
    """None if it was never there."""
    updates: int
    """Of the uploads of this site, how many were used; in methods with rounds, the rounds in which it trained."""
    lost: int
    """Jobs that did not arrive, and uploads that were refused."""
    tests: int | None
    """Evaluations for which it tested the model; None where the server tests, or the site has no test rows."""
    tested_last: bool | None
    """Whether it did so for the last one."""
    began_anew: tuple[int, ...] = ()
    """Jobs after which the site has lost what it kept, and so began anew."""


def real(record: RunRecord) -> bool:
    """Whether this is a run on real machines."""
    return (record.path / DEPLOYMENT).exists()


def sites(record: RunRecord) -> list[Site]:
    """All sites of a run on real machines, in the order of their numbers; also of one that goes on."""
    if not real(record):
        raise InputError(f"run folder {label(str(record.path))} holds no run on real machines; name another folder")
    with record.told_if_damaged(DEPLOYMENT):
        told = json.loads((record.path / DEPLOYMENT).read_text(encoding="utf-8"))
        names = [str(name) for name in told["sites"]]
        samples, rows = (_counts(told.get(key, {})) for key in (SAMPLES, TESTS))
        anew = {str(name): tuple(map(int, jobs)) for name, jobs in told.get(LOST, {}).items()}
    with record.told_if_damaged("clients.jsonl"):
        updates = Counter(row["client"] for row in record.arrivals())
    with record.told_if_damaged("unfinished.jsonl"):
        lost = Counter(row["client"] for row in record.unfinished() if row["why"] not in EXCUSED)
    with record.told_if_damaged("refused.jsonl"):
        lost.update(row["client"] for row in record.refused())
    with record.told_if_damaged("history.jsonl"):
        tested = [frozenset(row["tested_by"]) for row in record.history if row.get("tested_by") is not None]
    found = []
    for number, name in enumerate(names):
        tests = bool(tested) and rows.get(name) != 0
        found.append(
            Site(
                name,
                samples.get(name),
                updates[number],
                lost[number],
                sum(number in by for by in tested) if tests else None,
                number in tested[-1] if tests else None,
                anew.get(name, ()),
            )
        )
    return found


def own_data(record: RunRecord) -> bool:
    """Whether the sites brought their own data; otherwise the experiment's data set was dealt out to them."""
    if not real(record):
        return False
    with record.told_if_damaged(DEPLOYMENT):
        return bool(json.loads((record.path / DEPLOYMENT).read_text(encoding="utf-8"))["data"]["own"])


def waits(record: RunRecord) -> dict[int, float] | None:
    """By client, the seconds that even a small message and its answer take; None where no machine is real."""
    if not real(record):
        return None
    with record.told_if_damaged(DEPLOYMENT):
        told = json.loads((record.path / DEPLOYMENT).read_text(encoding="utf-8"))
        known = told.get(WAITS, {})
        return {number: float(known[name]) for number, name in enumerate(told["sites"]) if name in known}


def absences(record: RunRecord) -> dict[int, list[tuple[float, float]]]:
    """By client on a real machine, from when to when it was away; until infinity if it did not come back."""
    if not real(record):
        return {}
    with record.told_if_damaged(DEPLOYMENT):
        told = json.loads((record.path / DEPLOYMENT).read_text(encoding="utf-8"))
        known = {str(site): [*map(float, times)] for site, times in told.get(PRESENCE, {}).items()}
        names = [str(name) for name in told["sites"]] if known else []
    found = {}
    for client, name in enumerate(names):
        times = known.get(name, [])
        away = zip([0.0, *times[1::2]], [*times[::2], inf], strict=False)
        found[client] = [(left, came) for left, came in away if came > left]
    return found


def _counts(told: Any) -> dict[str, int]:
    return {str(name): int(count) for name, count in told.items()}


def told(record: RunRecord) -> dict[str, Any]:
    """What the summary of the run says of its sites."""
    found = sites(record)
    return {"sites": [asdict(site) for site in found], "missing": missing(found, rounds(record))}


def rounds(record: RunRecord) -> int:
    """How many are over."""
    return sum(1 for _ in record.rounds())


def missing(found: Sequence[Site], of: int) -> list[str]:
    """Sentences that name the sites without which, or without whose state, the result of so many rounds came about."""
    sentences = []
    never = [site.name for site in found if not site.updates]
    if never:
        sentences.append(f"no update came from {_listed(never)}")
    untested = [site.name for site in found if site.tested_last is False]
    if untested:
        sentences.append(f"the last test is without {_listed(untested)}")
    if max((site.updates for site in found), default=0) == of:  # nobody is left out by the method
        fewer = [site for site in found if 0 < site.updates < of]
        sentences += [f"{site.name} trained in {site.updates} of {of} rounds" for site in fewer]
    sentences += [
        f"{site.name} has lost what it kept after job {_listed([*map(str, site.began_anew)])}, and began anew"
        for site in found
        if site.began_anew
    ]
    return sentences


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
