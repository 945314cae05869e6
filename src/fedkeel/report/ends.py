"""How runs ended, for the legend of a figure: finished, diverged, still running, or not finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedkeel.record.divergence import divergence
from fedkeel.record.folder import complete, worked_on
from fedkeel.record.runs import RunRecord
from fedkeel.report.groups import Group

State = Literal["finished", "running", "unfinished", "diverged"]
STATES: tuple[State, ...] = ("finished", "running", "unfinished", "diverged")
MARKERS: dict[State, str] = {"finished": "", "running": "o", "unfinished": "o", "diverged": "x"}
"""As Matplotlib calls them."""


@dataclass(frozen=True)
class End:
    """How far a run came."""

    run: RunRecord
    state: State
    round: int
    """The last round that is recorded; where training diverged, the one after it."""


def end(run: RunRecord) -> End:
    """Look at the folder of a run."""
    if complete(run.path):
        return End(run, "finished", _round(run))
    if divergence(run.path) is not None:
        return End(run, "diverged", _round(run) + 1)
    return End(run, "running" if worked_on(run.path) else "unfinished", _round(run))


def _round(run: RunRecord) -> int:
    last = 0
    with run.told_if_damaged("rounds.jsonl"):
        for row in run.rounds():
            last = int(row["round"])
    with run.told_if_damaged("history.jsonl"):
        return max([last, *(int(row.get("round", 0)) for row in run.history[-1:])])


def ending(group: Group, ends: Sequence[End]) -> str:
    """What a legend says of runs that did not finish, such as `1 of 3 seeds diverged in round 7`; empty if all did."""
    parts = []
    for state in STATES[1:]:
        some = [each for each in ends if each.state == state]
        if some:
            who = "" if len(ends) == 1 else f"{len(some)} of {len(ends)} {group.unit} "
            parts.append(who + _words(state, some))
    return ", ".join(parts)


def _words(state: State, ends: Sequence[End]) -> str:
    rounds = sorted({each.round for each in ends})
    when = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    if state == "diverged":
        return f"diverged in {when}"
    whole = ends[0].run.experiment.get("rounds")
    same = isinstance(whole, int) and all(each.run.experiment.get("rounds") == whole for each in ends)
    return f"{state}, {when}" + (f" of {whole}" if same else "")
