"""The mean over seeds against a brute-force reading of its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.errors import InputError
from fedkeel.record.runs import RunRecord
from fedkeel.study.curves import SCALES, mean_curve
from fedkeel.study.results import Outcome, State

Rows = list[tuple[float, float | None]]


def evaluation(x: float, y: float | None) -> dict[str, Any]:
    """At the same place on every scale."""
    places = {"round": x, "virtual_seconds": x, "updates": x, "bytes_up": x / 4, "bytes_down": x * 3 / 4}
    return places | {"accuracy": y, "loss": None}


def outcome(rows: Rows, state: State = "finished") -> Outcome:
    record = RunRecord(Path("x"), {}, [evaluation(x, y) for x, y in rows])
    return Outcome("x", "", "v", 0, Path("x"), state=state, record=record)


def value(rows: list[tuple[float, float]], x: float) -> float:
    """On the straight line between the evaluations around a place."""
    before = [(at, y) for at, y in rows if at <= x][-1]
    after = next(((at, y) for at, y in rows if at > x), before)
    share = (x - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    return before[1] * (1 - share) + after[1] * share


known = st.lists(st.tuples(st.integers(0, 30), st.none() | st.floats(0, 1)), min_size=1, max_size=12).map(
    lambda rows: sorted(rows, key=lambda row: row[0])
)


@given(runs=st.lists(known, min_size=1, max_size=4), points=st.integers(2, 12), scale=st.sampled_from(SCALES))
def test_a_mean_is_that_of_the_lines_of_all_seeds(runs: list[Rows], points: int, scale: str) -> None:
    curve = mean_curve([outcome(rows) for rows in runs], scale, "accuracy", points)
    kept = [[*{x: y for x, y in rows if y is not None}.items()] for rows in runs]  # the last at a place
    kept = [rows for rows in kept if rows]
    assert curve.count == len(kept)
    if not kept:
        assert len(curve.x) == len(curve.mean) == len(curve.low) == len(curve.high) == 0
        return
    first, last = max(rows[0][0] for rows in kept), min(rows[-1][0] for rows in kept)
    union = sorted({x for rows in kept for x, _ in rows if first <= x <= last})
    if len(union) <= points:
        assert curve.x.tolist() == union
    else:
        assert len(curve.x) == points
        assert (curve.x[0], curve.x[-1]) == (first, last)
        assert np.allclose(np.diff(curve.x), (last - first) / (points - 1))
    for place, x in enumerate(curve.x):
        values = [value(rows, x) for rows in kept]
        assert curve.mean[place] == pytest.approx(sum(values) / len(values))
        assert (curve.low[place], curve.high[place]) == pytest.approx((min(values), max(values)))


def test_seeds_without_a_common_stretch_have_no_curve() -> None:
    curve = mean_curve([outcome([(1, 0.1), (2, 0.2)]), outcome([(3, 0.3)])], "rounds", "accuracy")
    assert (len(curve.x), len(curve.mean), curve.count) == (0, 0, 2)


def test_a_run_that_is_not_finished_does_not_cut_the_curve_short() -> None:
    whole, begun = [(1.0, 0.1), (2.0, 0.2), (3.0, 0.3)], [(1.0, 0.9)]
    for state in ("going on", "failed"):
        curve = mean_curve([outcome(begun, state), outcome(whole)], "rounds", "accuracy")
        assert (curve.mean.tolist(), curve.count) == ([0.1, 0.2, 0.3], 1)
    curve = mean_curve([outcome(begun, "failed"), outcome(whole, "going on")], "rounds", "accuracy")
    assert curve.mean.tolist() == [0.1, 0.2, 0.3]
    assert mean_curve([outcome(begun, "failed")], "rounds", "accuracy").mean.tolist() == [0.9]


def test_nothing_to_draw_is_an_empty_curve() -> None:
    waiting = Outcome("x", "", "v", 0, Path("x"))
    assert (len(mean_curve([waiting], "time", "accuracy").x), mean_curve([], "time", "accuracy").count) == (0, 0)
    assert mean_curve([outcome([(1, 0.5)])], "time", "loss").count == 0


def test_what_is_no_scale_and_damaged_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"x: 'tme' is not known; did you mean time\?"):
        mean_curve([], "tme", "accuracy")
    with pytest.raises(InputError, match="points must be at least 2; got 1"):
        mean_curve([], "time", "accuracy", 1)
    record = RunRecord(Path("x"), {}, [{"accuracy": 0.5}])
    with pytest.raises(InputError, match=r"history.jsonl is damaged \(KeyError: 'round'\)"):
        mean_curve([Outcome("x", "", "v", 0, Path("x"), state="finished", record=record)], "rounds", "accuracy")
