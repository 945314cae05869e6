"""The table of a comparison against numbers from its definitions."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from scipy.stats import t, ttest_rel  # type: ignore[import-untyped]

from fedkeel.study.plan import Measure
from fedkeel.study.results import Results, collect
from fedkeel.study.statistics import Leaders
from fedkeel.study.store import Store
from fedkeel.study.table import columns, evaluations, judged, lines, many_tasks, run_columns, verdict
from tests.helpers.studies import by_hand, fill, row, write_run

SCORES = {"plain": [0.50, 0.53, 0.49], "good": [0.60, 0.62, 0.61], "level": [0.605, 0.61, 0.62]}


def gathered(place: Path, scores: dict[str, list[float]], measure: Measure | None = None) -> Results:
    """Each run has an evaluation of 0.1 less before the last."""
    plan = by_hand([("", name, seed) for name in scores for seed in range(len(scores[name]))], measure)
    runs = {
        (name, seed): [row(1, score - 0.1), row(2, score)]
        for name, found in scores.items()
        for seed, score in enumerate(found)
    }
    fill(plan, place, runs, summary={"client_accuracy": {"mean": 0.4, "worst_decile": 0.2}})
    return collect(plan, place)


def bounds(values: list[float]) -> tuple[float, float, float]:
    half = t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return mean(values), mean(values) - half, mean(values) + half


def test_means_intervals_and_differences_are_those_of_the_textbook(tmp_path: Path) -> None:
    found = {line.variant: line for line in lines(gathered(tmp_path, SCORES, Measure(reference="plain")))}
    for name, scores in SCORES.items():
        got = found[name].value
        assert got is not None
        assert (got.mean, got.low, got.high) == pytest.approx(bounds(scores))
        losses = found[name].loss
        assert losses is not None
        assert losses.mean == pytest.approx(2 - mean(scores))
        gap = found[name].difference
        if name == "plain":
            assert gap is None
            continue
        assert gap is not None
        apart = [ours - theirs for ours, theirs in zip(scores, SCORES["plain"], strict=True)]
        assert (gap.mean, gap.low, gap.high) == pytest.approx(bounds(apart))
        assert (gap.wins, gap.count) == (3, 3)
    assert ttest_rel(SCORES["good"], SCORES["plain"]).pvalue < 0.025  # so it is clear of plain, also by Holm
    assert [found[name].standing for name in SCORES] == ["", "level", "level"]
    assert found["plain"].sentence == "the reference"
    assert found["good"].sentence.startswith("better than plain in 3 of 3 seeds")


def test_one_variant_that_is_clear_of_all_others_is_best(tmp_path: Path) -> None:
    found = lines(gathered(tmp_path, {name: SCORES[name] for name in ("plain", "good")}, Measure(reference="plain")))
    assert [line.standing for line in found] == ["", "best"]
    assert found[1].sentence.startswith("best here; better than plain")


def test_with_one_seed_nobody_is_best(tmp_path: Path) -> None:
    found = lines(gathered(tmp_path, {"a": [0.1], "b": [0.9]}, Measure(reference="a")))
    assert [line.standing for line in found] == ["", ""]
    assert found[1].value is not None
    assert found[1].value.low is None
    assert "one seed: no interval" in found[1].sentence


def test_why_nobody_is_best_is_told(tmp_path: Path) -> None:
    best = {"plain": [0.50, 0.53, 0.49, 0.52], "good": [0.60, 0.64, 0.59, 0.63]}
    cases = {
        "one is": (best, lambda _: None, ""),
        "alone": ({"plain": [0.5, 0.6]}, lambda _: None, ""),
        "level": (SCORES, lambda _: None, "the differences between level and good may be noise; more seeds "),
        "one seed": (
            {"a": [0.1], "b": [0.9]},
            lambda _: None,
            "it takes several seeds to tell a ",
        ),
        "to come": (
            best,
            lambda store: (store.folder("plain-1") / "summary.json").unlink(),
            "some runs have not ended yet",
        ),
        "failed": (
            best,
            lambda store: failed(store, "good-1"),
            "not all runs of good, which has the best mean, ended",
        ),
    }
    for name, (scores, change, why) in cases.items():
        place = tmp_path / name
        gathered(place, scores)
        change(Store(place))
        leaders, told = judged(collect(Store(place).plan(), place), "")
        assert told.startswith(why) if why else not told, name
        assert (leaders.best == "good") == (name == "one is"), name


def test_the_verdict_is_a_sentence_that_names_a_few(tmp_path: Path) -> None:
    close = [0.50, 0.51, 0.49]
    two = verdict(gathered(tmp_path / "two", {"fedavg": close, "fedprox": close[::-1]}), "")
    start = "No method is clearly best: the differences between fed"
    assert two.startswith(start)
    assert two.endswith(" may be noise; more seeds would tell more.")
    swept = verdict(gathered(tmp_path / "sweep", {"local.lr=0.1": close, "local.lr=0.2": close[::-1]}), "")
    assert swept.startswith("No setting is clearly best: the differences between local.lr=0.")
    turned = [close, close[::-1], [0.51, 0.50, 0.49], [0.49, 0.50, 0.51], [0.50, 0.49, 0.51], [0.49, 0.51, 0.50]]
    many = verdict(gathered(tmp_path / "many", {f"m{n}": each for n, each in enumerate(turned)}), "")
    assert re.search(r"between m\d, m\d, m\d, m\d and 2 more may be noise", many)
    best = {"plain": [0.50, 0.53, 0.49, 0.52], "good": [0.60, 0.64, 0.59, 0.63]}
    assert verdict(gathered(tmp_path / "best", best), "") == ""


def test_a_run_that_is_judged_too_early_allows_no_verdict(tmp_path: Path) -> None:
    """Where another one ended after its first evaluation, whose rounds are much shorter."""
    plan = by_hand([("", name, seed) for name in ("slow", "quick") for seed in range(4)], Measure("time"))
    fill(
        plan,
        tmp_path,
        {("slow", seed): [row(n, 0.3 + n / 10 + seed / 99) for n in range(1, 5)] for seed in range(4)}
        | {("quick", seed): [row(1, 0.6 + seed / 50)] for seed in range(4)},
    )
    found = collect(plan, tmp_path)
    assert [line.standing for line in lines(found)] == ["", ""]
    assert judged(found, "")[1] == "slow is judged by its first 1 evaluation; another run ended too soon after that"


def test_where_the_user_chose_the_place_a_few_evaluations_are_enough(tmp_path: Path) -> None:
    cells = [(name, seed) for name in ("good", "plain") for seed in range(4)]
    plan = by_hand([("", *cell) for cell in cells], Measure("rounds", until=2, reference="plain"))
    gap = {"good": 0.2, "plain": 0.0}
    runs = {(name, seed): [row(n, 0.3 + gap[name] + seed / 90 + n / 99) for n in range(1, 9)] for name, seed in cells}
    runs["good", 0][1]["accuracy"] += 0.01  # equal differences would tell nothing
    fill(plan, tmp_path, runs)
    assert judged(collect(plan, tmp_path), "") == (Leaders("good", ()), "")


def test_a_run_that_is_left_out_keeps_nobody_from_a_verdict(tmp_path: Path) -> None:
    cells = [(name, seed) for name in ("good", "plain", "rare") for seed in range(4)]
    plan = by_hand([("", *cell) for cell in cells], Measure("time"))
    gap = {"good": 0.2, "plain": 0.0, "rare": 0.0}
    runs = {(name, seed): [row(n, 0.3 + gap[name] + seed**2 / 900) for n in (1, 2, 3, 4)] for name, seed in cells}
    runs |= {("rare", seed): [row(n, 0.9) for n in (9, 10, 11, 12)] for seed in range(4)}
    runs["good", 0][3]["accuracy"] += 0.01
    fill(plan, tmp_path, runs)
    assert judged(collect(plan, tmp_path), "")[0].best == "good"


def test_as_many_may_be_best_as_are_marked(tmp_path: Path) -> None:
    """One that cannot be told apart from the highest mean, but is clearly worse than the reference, may not."""
    scores = {"plain": [0.60, 0.64], "worse": [0.50, 0.541], "high": [0.72, 0.62]}
    found = gathered(tmp_path, scores, Measure(reference="plain"))
    assert [line.standing for line in lines(found)] == ["level", "", "level"]
    assert judged(found, "")[1] == "the differences between high and plain may be noise; more seeds would tell more"


def failed(store: Store, name: str) -> None:
    (store.folder(name) / "summary.json").unlink()
    store.fail(name, "DivergenceError", "it diverged")


def test_a_line_counts_what_reached_the_target(tmp_path: Path) -> None:
    scores = {"a": [0.5, 0.65, 0.9], "b": [0.2, 0.2, 0.2]}
    a, b = lines(gathered(tmp_path, scores, Measure(target=0.6)))
    assert (a.reached, b.reached) == (2, 0)
    means = [each and each.mean for each in (a.rounds_to_target, a.seconds_to_target, a.uploads_to_target)]
    assert means == [1.5, 15.0, 4.5]  # after its second evaluation, and after its first
    assert a.bytes_to_target is not None
    assert a.bytes_to_target.mean == 10.5
    assert b.rounds_to_target is b.bytes_to_target is None


def test_failed_and_unfinished_runs_count_but_do_not_weigh(tmp_path: Path) -> None:
    plan = by_hand(
        [("", "a", seed) for seed in range(4)] + [("", "b", seed) for seed in range(4)], Measure(reference="b")
    )
    fill(plan, tmp_path, {("a", 0): [row(1, 0.5)], ("b", 0): [row(1, 0.4)], ("b", 1): [row(1, 0.4)]})
    write_run(tmp_path / "runs" / "a-1", [row(1, 0.01)], finished=False)
    Store(tmp_path).fail("a-1", "DivergenceError", "it diverged")
    write_run(tmp_path / "runs" / "a-2", [row(1, 0.02)], finished=False)
    a, b = lines(collect(plan, tmp_path))
    assert (a.finished, a.failed, a.pending) == (1, 1, 2)
    assert (b.finished, b.failed, b.pending) == (2, 0, 2)
    assert a.value is not None
    assert a.difference is not None
    assert (a.value.mean, a.value.count, a.difference.count) == (0.5, 1, 1)
    assert "1 of 4 runs failed: it diverged" in a.sentence
    assert "2 of 4 runs to come" in a.sentence


def test_a_variant_whose_runs_all_failed_is_a_line(tmp_path: Path) -> None:
    plan = by_hand([("", "a", 0), ("", "b", 0)], Measure(reference="b"))
    fill(plan, tmp_path, {("a", 0): [row(1, 0.5)]})
    Store(tmp_path).fail("b-0", "DivergenceError", "it diverged")
    found = collect(plan, tmp_path)
    a, b = lines(found)
    assert (b.failed, b.value, b.sentence) == (1, None, "1 of 1 run failed: it diverged")
    assert a.difference is None
    assert [each["accuracy"] for each in columns(found)] == [0.5, None]


def test_columns_hold_the_same_numbers_and_no_real_times(tmp_path: Path) -> None:
    found = gathered(tmp_path, SCORES, Measure(target=0.6, reference="plain"))
    told = columns(found)
    for each, line in zip(told, lines(found), strict=True):
        assert line.value is not None
        assert (each["variant"], each["accuracy"], each["accuracy_low"]) == (
            line.variant,
            line.value.mean,
            line.value.low,
        )
        assert (each["compared_at"], each["compared_where"], each["finished"]) == ("rounds", 2.0, 3)
        assert (each["client_accuracy"], each["client_worst_decile"]) == pytest.approx((0.4, 0.2))
        assert (each["reference"], each["standing"], each["reached"]) == ("plain", line.standing, line.reached)
    assert told[0]["difference"] is None
    assert told[1]["better_in"] == told[1]["compared_in"] == 3
    assert not [name for name in told[0] if "wall" in name or ("second" in name and not name.startswith("virtual"))]


def test_runs_are_told_one_by_one_where_they_are_compared(tmp_path: Path) -> None:
    found = gathered(tmp_path, {"a": [0.5, 0.65]}, Measure(target=0.6, until=1))
    assert run_columns(found)[1] == {
        **{"run": "a-1", "scene": "", "variant": "a", "seed": 1, "state": "finished"},
        **{"accuracy": 0.65 - 0.1, "best_accuracy": 0.65 - 0.1, "loss": 2 - (0.65 - 0.1), "accuracy_at_its_end": 0.65},
        **{"round": 1, "virtual_seconds": 10.0, "updates": 3, "bytes_up": 5, "bytes_down": 2},
        **{"rounds_to_target": 2, "virtual_seconds_to_target": 20.0, "uploads_to_target": 6, "bytes_to_target": 14},
    }


def test_every_evaluation_is_told_in_long_form(tmp_path: Path) -> None:
    plan = by_hand([("", "a", 0)])
    fill(plan, tmp_path, {("a", 0): [row(1, 0.1, local_accuracy={"mean": 0.3, "low": 0.2}), row(2, 0.2)]})
    first, second = evaluations(collect(plan, tmp_path))
    assert (first["local_accuracy_mean"], first["local_accuracy_low"], first["run"]) == (0.3, 0.2, "a-0")
    assert (second["round"], second["accuracy"], "local_accuracy_mean" in second) == (2, 0.2, False)


def scenes(place: Path, scores: dict[tuple[str, str], list[float]]) -> Results:
    plan = by_hand(
        [(*cell, seed) for cell, each in scores.items() for seed in range(len(each))], Measure(reference="a")
    )
    Store(place).keep(plan)
    for case in plan.cases:
        score = scores[case.scene, case.variant][case.seed]
        rows: list[dict[str, Any]] = [row(1, score), row(2 if case.scene == "x" else 3, score)]
        write_run(Store(place).folder(case.name), rows)
    return collect(plan, place)


def test_scenes_have_lines_and_yardsticks_of_their_own(tmp_path: Path) -> None:
    found = scenes(tmp_path, {("x", "a"): [0.1], ("x", "b"): [0.2], ("y", "b"): [0.4]})
    assert found.limits == {"x": 2.0, "y": 3.0}
    assert [(line.scene, line.variant) for line in lines(found)] == [("x", "a"), ("x", "b"), ("y", "b")]
    assert [each["compared_where"] for each in columns(found)] == [2.0, 2.0, 3.0]


def test_over_scenes_only_variants_with_runs_in_each_are_told(tmp_path: Path) -> None:
    cells = {("x", "a"): [0.1, 0.2], ("x", "b"): [0.4, 0.5], ("y", "a"): [0.2, 0.3], ("y", "b"): [0.6, 0.7]}
    found = many_tasks(scenes(tmp_path, {**cells, ("y", "c"): [0.5, 0.5]}))
    assert [each.variant for each in found] == ["a", "b"]
    assert found[0].improvement is None
    assert found[1].improvement is not None
    assert found[1].improvement.mean == 1.0
    assert (found[1].improvement.low, found[1].middle.low) == (None, None)  # two seeds are too few for a bootstrap
    for each, score in zip(found, ([0.1, 0.2, 0.2, 0.3], [0.4, 0.5, 0.6, 0.7]), strict=True):
        assert each.middle.mean == pytest.approx(mean(sorted(score)[1:-1]))  # interquartile, of four
        for threshold, share in each.profile:
            assert share.mean == pytest.approx(sum(one > threshold for one in score) / 4)
    assert many_tasks(gathered(tmp_path / "one", SCORES)) == []


def test_a_variant_with_failed_seeds_is_neither_best_nor_level(tmp_path: Path) -> None:
    """The seeds that are left are those in which it went well."""
    plan = by_hand([("", name, seed) for name in ("a", "b") for seed in range(4)], Measure(reference="a"))
    runs = {("a", seed): [row(1, 0.5 + seed / 100)] for seed in range(4)}
    runs |= {("b", seed): [row(1, 0.8 + seed / 50)] for seed in range(3)}
    fill(plan, tmp_path, runs)
    Store(tmp_path).fail("b-3", "DivergenceError", "it diverged")
    a, b = lines(collect(plan, tmp_path))
    assert (a.standing, b.standing) == ("", "")
    assert b.difference is not None
    assert b.difference.clear
    assert b.sentence.startswith("over the 3 seeds of 4 that both finished: better than a in 3 of 3 seeds")
    assert b.sentence.endswith("1 of 4 runs failed: it diverged")
