"""What runs came to where they are compared, on histories written by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.errors import InputError
from fedkeel.record.lock import lock
from fedkeel.study.plan import At, Measure
from fedkeel.study.results import Listed, Outcome, Results, collect, results
from fedkeel.study.store import PRUNED, Store
from fedkeel.study.table import lines
from tests.helpers.studies import by_hand, fill, row, write_run

SCALES: tuple[At, ...] = get_args(At)
Runs = dict[tuple[str, int], list[dict[str, Any]]]


def gathered(place: Path, runs: Runs, measure: Measure, **more: Any) -> Results:
    plan = by_hand([("", variant, seed) for variant, seed in runs], measure)
    fill(plan, place, runs, **more)
    return collect(plan, place)


def of(found: Results, variant: str, seed: int = 0) -> Outcome:
    return next(each for each in found.of("", variant) if each.seed == seed)


def used(each: dict[str, Any], at: At) -> float:
    """What an evaluation's run has used up, by the documented keys."""
    keys = {
        "time": ["virtual_seconds"],
        "rounds": ["round"],
        "uploads": ["updates"],
        "bytes": ["bytes_up", "bytes_down"],
    }
    return float(sum(each[key] for key in keys[at]))


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    steps = draw(st.lists(st.tuples(*[st.integers(1, 9)] * 5, st.integers(0, 100)), min_size=1, max_size=6))
    total, found = [0] * 5, []
    for *more, score in steps:
        total = [a + b for a, b in zip(total, more, strict=True)]
        place = dict(zip(("virtual_seconds", "updates", "bytes_up", "bytes_down"), total[1:], strict=True))
        found.append(row(total[0], score / 100, loss=1 - score / 200, **place))
    return found


@st.composite
def placed(draw: st.DrawFn) -> tuple[str, str, list[dict[str, Any]], bool]:
    """(Scene, state, history, whether it was to stop at a target of 0.5)."""
    state = draw(st.sampled_from(["finished", "finished", "failed", "stopped", "not begun"]))
    return draw(st.sampled_from(["x", "y"])), state, draw(histories()), draw(st.booleans())


@given(
    runs=st.lists(placed(), min_size=1, max_size=5),
    at=st.sampled_from(SCALES),
    until=st.none() | st.integers(1, 40),
    last=st.integers(1, 3),
    target=st.none() | st.sampled_from([0.25, 0.5, 0.75]),
)
def test_the_yardstick_against_brute_force(
    runs: list[tuple[str, str, list[dict[str, Any]], bool]], at: At, until: int | None, last: int, target: float | None
) -> None:
    with TemporaryDirectory() as place:
        listed = []
        for seed, (scene, state, history, stops) in enumerate(runs):
            folder = Path(place) / str(seed)
            if state != "not begun":
                told = {"stop_at_target": stops, "target_accuracy": 0.5}
                write_run(folder, history, told, finished=state == "finished")
            why = "it broke" if state == "failed" else None
            listed.append(Listed(str(seed), scene, "v", seed, folder, why))
        found = results("t", listed, Measure(at, until, last, target))
    for scene in ("x", "y"):
        done = [each for each in runs if each[:2] == (scene, "finished")]
        stopped = any(stops and history[-1]["accuracy"] >= 0.5 for _, _, history, stops in done)
        ends = [used(history[-1], at) for _, _, history, _ in done]
        limit = min([*ends, until or inf]) if ends and not stopped else inf
        assert (scene in found.stopped) == stopped
        assert found.limits.get(scene) == (limit if ends else None)
        for outcome, (its, state, history, _) in zip(found.outcomes, runs, strict=True):
            if its == scene:
                check(outcome, state, history, limit)


def check(outcome: Outcome, state: str, history: list[dict[str, Any]], limit: float) -> None:
    """One run, whatever its state, as the definitions say."""
    at, last, target = outcome.measure.at, outcome.measure.last, outcome.measure.target
    assert outcome.state == state
    kept = [each for each in history if used(each, at) <= limit] if state != "not begun" else []
    if not kept:
        assert (outcome.value, outcome.loss, outcome.best, outcome.position) == (None, None, None, {})
    else:
        for name, value in (("accuracy", outcome.value), ("loss", outcome.loss)):
            mean = sum(each[name] for each in kept[-last:]) / len(kept[-last:])
            assert value == pytest.approx(mean, rel=1e-12)
        assert outcome.best == max(each["accuracy"] for each in kept)
        assert outcome.position == kept[-1]
    there = [e for e in history if target is not None and e["accuracy"] >= target] if state != "not begun" else []
    reached = (outcome.rounds_to_target, outcome.seconds_to_target, outcome.uploads_to_target, outcome.bytes_to_target)
    if there:
        assert reached == (*(there[0][key] for key in ("round", "virtual_seconds", "updates")), used(there[0], "bytes"))
    else:
        assert reached == (None,) * 4


def test_runs_are_compared_where_the_shortest_ends(tmp_path: Path) -> None:
    runs = {("a", 0): [row(n, n / 10) for n in (1, 2, 3)], ("b", 0): [row(n, n / 20) for n in (1, 2, 3, 4, 5)]}
    found = gathered(tmp_path, runs, Measure())
    assert found.limits == {"": 3.0}
    assert (of(found, "a").value, of(found, "b").value) == (0.3, 0.15)
    assert found.notes == (
        "compared at 3 rounds, where a (seed 0) ended; later results do not count, though b went on to 5 rounds (to "
        "compare later, set as many rounds for all)",
    )


def test_a_run_that_ended_by_the_clock_ends_between_two_rounds(tmp_path: Path) -> None:
    runs = {("a", 0): [row(1, 0.1), row(2, 0.2)], ("b", 0): [row(1, 0.3), row(2, 0.4, virtual_seconds=24.0)]}
    found = gathered(tmp_path, runs, Measure("time"), summary={"virtual_seconds": 25.0})
    assert found.limits == {"": 25.0}
    assert of(found, "b").value == 0.4  # 24 s are not after the end of the other, whose last round was at 20 s


def test_a_run_that_ended_before_the_place_asked_for_is_told(tmp_path: Path) -> None:
    runs = {("a", 0): [row(n, 0.1) for n in range(1, 9)], ("b", 3): [row(1, 0.1), row(2, 0.2)]}
    found = gathered(tmp_path, runs, Measure("time", until=60.0))
    assert found.notes == (
        "compared at 20 virtual seconds, where b (seed 3) ended, not at 60 virtual seconds; with more rounds, it would "
        "continue until then",
    )
    (shorter := {**runs}).pop(("b", 3))
    assert gathered(tmp_path / "other", shorter, Measure("time", until=60.0)).notes == ()


def test_a_run_without_an_evaluation_in_time_is_told(tmp_path: Path) -> None:
    runs = {("quick", 0): [row(1, 0.1), row(2, 0.2)], ("rare", 0): [row(10, 0.9)]}
    found = gathered(tmp_path, runs, Measure("time"))
    assert of(found, "rare").value is None
    assert of(found, "quick").value == 0.2
    assert found.notes[0].startswith("compared at 20 virtual seconds, where quick (seed 0) ended")
    assert found.notes[1:] == ("no evaluation yet at 20 virtual seconds, so left out: rare (seed 0)",)


def test_where_runs_stopped_at_their_target_accuracies_are_not_compared(tmp_path: Path) -> None:
    plan = by_hand([("", "stopped", 0), ("", "whole", 0)], Measure(target=0.5))
    Store(tmp_path).keep(plan)
    stops = {"stop_at_target": True, "target_accuracy": 0.5}
    write_run(tmp_path / "runs" / "stopped-0", [row(1, 0.2), row(2, 0.6)], stops)
    write_run(tmp_path / "runs" / "whole-0", [row(n, n / 20) for n in range(1, 9)], stops)
    found = collect(plan, tmp_path)
    assert (found.limits, found.stopped) == ({"": inf}, {""})
    assert found.notes == ("runs stopped at their target, so their results are not compared, only what it took",)
    assert all(line.standing == "" and line.difference is None for line in lines(found))
    assert (of(found, "stopped").value, of(found, "whole").value) == (0.6, 0.4)
    assert (of(found, "stopped").rounds_to_target, of(found, "whole").rounds_to_target) == (2, None)


def test_failed_and_unfinished_runs_are_told_as_such_and_end_nothing(tmp_path: Path) -> None:
    names = ("whole", "failed", "pruned", "going", "killed", "later")
    plan = by_hand([("", name, 0) for name in names])
    store = Store(tmp_path)
    store.keep(plan)
    write_run(store.folder("whole-0"), [row(n, 0.5) for n in (1, 2, 3)])
    write_run(store.folder("failed-0"), [row(1, 0.1)], finished=False)
    store.fail("failed-0", "DivergenceError", "it diverged")
    write_run(store.folder("pruned-0"), [row(1, 0.2)], finished=False)
    store.fail("pruned-0", PRUNED, "behind the others")
    write_run(store.folder("killed-0"), [row(1, 0.4)], finished=False)
    write_run(store.folder("going-0"), [row(1, 0.2), row(2, 0.3)], finished=False)
    with (store.folder("going-0") / "history.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')  # it is being written
        file.flush()
        lock(file.fileno())
        found = collect(plan, tmp_path)
    states = ["finished", "failed", "pruned", "going on", "stopped", "not begun"]
    assert [each.state for each in found.outcomes] == states
    assert of(found, "failed").failure == "it diverged"
    assert found.limits == {"": 3.0}
    assert [each.value for each in found.outcomes] == [0.5, 0.1, 0.2, 0.3, 0.4, None]


def test_a_run_that_has_begun_without_an_evaluation_has_no_accuracy(tmp_path: Path) -> None:
    plan = by_hand([("", "a", 0)])
    Store(tmp_path).keep(plan)
    write_run(tmp_path / "runs" / "a-0", [], finished=False)
    (outcome,) = collect(plan, tmp_path).outcomes
    assert (outcome.state, outcome.value, outcome.history, outcome.report) == ("stopped", None, [], {})


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "summary.json",
            "{",
            r"is damaged \(summary.json cannot be read: JSONDecodeError\); delete it to run it again",
        ),
        ("summary.json", "[]", r"is damaged \(summary.json holds no summary\); delete it to run it again"),
        (
            "history.jsonl",
            "",
            r"is damaged \(history.jsonl has no row\); delete it to run it again, or name another one",
        ),
        ("summary.json", '{"final_accuracy": 0.7}', r"is damaged \(history.jsonl does not end as summary.json says\)"),
        ("experiment.yaml", None, r"is damaged \(experiment.yaml is missing\)"),
        ("history.jsonl", '{"round": 1}\n', r"history.jsonl is damaged \(KeyError: 'virtual_seconds'"),
        ("history.jsonl", '{"round": 1, "virtual_seconds": "x"}\n', r"history.jsonl is damaged \(ValueError"),
        ("history.jsonl", "junk\n", "history.jsonl is damaged .line 1: it is no row"),
        ("experiment.yaml", "[", "run folder .*: experiment file .* is not valid YAML; line 1"),
        ("run.json", "{}", "run.json is damaged; use a copy of the folder, or run the experiment again"),
    ],
)
def test_a_damaged_run_is_told(name: str, text: str | None, sentence: str, tmp_path: Path) -> None:
    plan = by_hand([("", "a", 0)], Measure("time"))
    fill(plan, tmp_path, {("a", 0): [row(1, 0.5)]})
    path = tmp_path / "runs" / "a-0" / name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        collect(plan, tmp_path)


def test_what_the_method_said_last_is_there(tmp_path: Path) -> None:
    found = gathered(tmp_path, {("a", 0): [row(1, 0.5)]}, Measure())
    (tmp_path / "runs" / "a-0" / "rounds.jsonl").write_text('{"round": 1, "x": 2}\n{"round": 2, "x": 3}\n')
    assert of(found, "a").report == {"round": 2, "x": 3}


def test_cells_and_orders(tmp_path: Path) -> None:
    runs = {(variant, seed): [row(1, 0.5)] for variant in ("z", "y") for seed in (7, 2)}
    found = gathered(tmp_path, runs, Measure())
    assert (found.scenes, found.variants, found.seeds) == ([""], ["z", "y"], [2, 7])
    assert [each.seed for each in found.of("", "y")] == [7, 2]


def test_clients_are_those_of_the_moment_of_comparison() -> None:
    """Not of the end of a run that went on."""
    history = [{"accuracy": 0.5, "clients": {"accuracy": {"mean": 0.4}}}, {"accuracy": 0.9}, {"accuracy": 0.9}]
    record: Any = SimpleNamespace(history=history)
    told = {"name": "a", "scene": "", "variant": "a", "seed": 0, "folder": Path("a"), "record": record}
    ended = Outcome(**told, summary={"client_accuracy": {"mean": 0.8}}, kept=3)
    assert ended.of_clients == {"mean": 0.8}
    assert replace(ended, kept=1).of_clients == {"mean": 0.4}
    assert replace(ended, kept=2).of_clients is None
