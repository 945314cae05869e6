"""Comparisons, sweeps and searches by metrics other than accuracy: which way is better, and on which set of samples."""

from __future__ import annotations

import csv
import json
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.errors import InputError
from fedkeel.record.measured import Measured, canonical, told
from fedkeel.report.page.digest import digest
from fedkeel.study.adhoc import gather
from fedkeel.study.export import caption, markdown
from fedkeel.study.plan import Measure
from fedkeel.study.results import Results, collect
from fedkeel.study.search import _trial
from fedkeel.study.statistics import best, paired
from fedkeel.study.store import Store
from fedkeel.study.sweep import ranking
from fedkeel.study.table import columns, judged, lines, many_tasks
from tests.helpers.commands import fedkeel, in_a_process
from tests.helpers.studies import by_hand, row, write_run

RMSE, R2 = Measured("rmse", "lower", share=False), Measured("r2", share=False)
OLD = Path(__file__).parents[1] / "record" / "data" / "schema-1-complete"


def error(round: int, rmse: float | None, **more: Any) -> dict[str, Any]:
    """An evaluation of a regression."""
    rest = {name: value for name, value in row(round, 0.5).items() if name != "accuracy"}
    return {**rest, "rmse": rmse, "r2": 0.25, **more}


def written(folder: Path, rows: list[dict[str, Any]], metrics: tuple[Measured, ...] = (RMSE, R2), **more: Any) -> Path:
    write_run(folder, rows, **more)
    (folder / "run.json").write_text(json.dumps({"schema": 2, "fedkeel": "0", "metrics": told(metrics)}))
    return folder


def gathered(
    place: Path, scores: dict[str, list[list[float]]], measure: Measure, scenes: tuple[str, ...] = ("",)
) -> Results:
    """Runs with these values of rmse, by variant and seed, round by round."""
    cells = [(scene, name, seed) for scene in scenes for name, seeds in scores.items() for seed in range(len(seeds))]
    plan = by_hand(cells, measure)
    Store(place).keep(plan)
    for case in plan.cases:
        rows = [error(at, value) for at, value in enumerate(scores[case.variant][case.seed], 1)]
        written(Store(place).folder(case.name), rows, experiment={"seed": case.seed})
    return collect(Store(place).plan(), place)


SCORES = {"plain": [[2.0, 1.5], [2.1, 1.62], [1.9, 1.41]], "good": [[1.5, 0.5], [1.6, 0.64], [1.4, 0.43]]}


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(-50, 50), min_size=3, max_size=3), min_size=2, max_size=4))
def test_lower_is_better_is_higher_is_better_of_the_negative(values: list[list[int]]) -> None:
    up = {str(name): {seed: value / 8 for seed, value in enumerate(each)} for name, each in enumerate(values)}
    down = {name: {seed: -value for seed, value in each.items()} for name, each in up.items()}
    assert best(down, "lower") == best(up)
    ours, theirs = paired(down["0"], down["1"], "lower"), paired(up["0"], up["1"])
    assert ours is not None
    assert theirs is not None
    assert (ours.wins, ours.ties, ours.gain, ours.clear) == (theirs.wins, theirs.ties, theirs.gain, theirs.clear)


def test_the_lower_error_is_best_and_the_difference_says_so(tmp_path: Path) -> None:
    found = gathered(tmp_path, SCORES, Measure(reference="plain", target=0.6))
    assert found.metric == RMSE
    assert judged(found, "")[0].best == "good"
    plain, good = lines(found)
    assert plain.value is not None
    assert plain.value.mean == pytest.approx((1.5 + 1.62 + 1.41) / 3)
    assert good.difference is not None
    assert good.difference.mean == pytest.approx((-1.0 - 0.98 - 0.98) / 3)
    assert (good.difference.wins, good.standing, plain.standing) == (3, "best", "")
    assert good.sentence.startswith("best here; better than plain in 3 of 3 seeds, -0.987")
    assert (good.reached, plain.reached) == (2, 0)  # at most 0.6
    assert good.best is not None
    assert good.best.mean == pytest.approx((0.5 + 0.64 + 0.43) / 3)


def test_files_name_the_metric(tmp_path: Path) -> None:
    found = gathered(tmp_path, SCORES, Measure(reference="plain", target=0.6))
    first = columns(found)[0]
    assert {"rmse", "rmse_low", "best_rmse", "target_rmse", "client_rmse"} < first.keys()
    assert first["better"] == "lower"
    assert not any("accuracy" in name for name in first)
    text = markdown(found)
    assert text.startswith("|  | rmse | against plain | rounds to 0.6 |")
    values = [seeds[-1] for seeds in SCORES["good"]]
    half = 4.302653 * stdev(values) / sqrt(3)  # the 97.5 % quantile of Student's t with two degrees of freedom
    assert f"**{mean(values):.2f} ± {half:.2f}**" in text
    assert "Test rmse at 2 rounds" in text
    assert "Lower is better." in text
    assert "%" not in text.replace("95 % intervals", "")


def test_another_metric_is_asked_for_by_its_name(tmp_path: Path) -> None:
    gathered(tmp_path, SCORES, Measure(reference="plain", target=0.6))
    found = gather([tmp_path], metric="r2")
    assert (found.metric, found.measure.target) == (R2, None)  # the target was one of another metric
    assert [line.value and line.value.mean for line in lines(found)] == [0.25, 0.25]
    assert gather([tmp_path], metric="loss").metric.better == "lower"
    with pytest.raises(InputError, match=r"metric: 'accuracy' was not measured in .*; choose one of rmse, r2, loss"):
        gather([tmp_path], metric="accuracy")


def test_runs_that_are_judged_by_different_metrics_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "a", [error(1, 0.5)])
    write_run(tmp_path / "b", [row(1, 0.5)], {"seed": 1})
    with pytest.raises(InputError, match=r"a is judged by rmse \(lower is better\), but .*b by accuracy \(higher is"):
        gather([tmp_path / "a", tmp_path / "b"])
    written(tmp_path / "c", [error(1, 0.5)], (R2, RMSE))
    assert gather([tmp_path / "a", tmp_path / "c"], metric="r2").metric == R2


def test_which_way_is_better_is_read_from_the_run_without_the_users_code(tmp_path: Path) -> None:
    own = Measured("mine", "lower", share=False)
    rows = [{**error(1, 0.5), "mine": value} for value in (3.0, 1.0)]
    for name, each in zip("ab", rows, strict=True):
        written(tmp_path / name, [each], (own,), experiment={"metrics": ["no_such_module:mine"], "name": name})
    found = gather([tmp_path / "a", tmp_path / "b"])
    assert found.metric == own
    assert [run.value for run in found.outcomes] == [3.0, 1.0]


def test_a_metric_that_is_not_defined_is_left_out_and_told(tmp_path: Path) -> None:
    written(tmp_path / "a", [error(1, None)])
    found = gather([tmp_path / "a"])
    assert (found.outcomes[0].value, found.outcomes[0].best) == (None, None)
    assert found.notes == ("rmse is not defined, so left out: fedavg (seed 0)",)
    assert digest(found)["figures"]["value"] is None


def test_a_target_that_a_share_cannot_have_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [row(1, 0.5)])
    with pytest.raises(InputError, match="target must be a value of accuracy above 0 and at most 1; got 70"):
        gather([tmp_path / "a"], target=70)
    written(tmp_path / "b", [error(1, 80.0)])
    assert gather([tmp_path / "b"], target=90.0).outcomes[0].rounds_to_target == 1
    assert gather([tmp_path / "b"], target=70.0).outcomes[0].rounds_to_target is None


def test_over_scenes_lower_errors_win(tmp_path: Path) -> None:
    found = gathered(tmp_path, SCORES, Measure(reference="plain"), ("s", "t"))
    (plain, good) = many_tasks(found)
    assert plain.improvement is None
    assert good.improvement is not None
    assert good.improvement.mean == 1.0  # every error of ours is below every one of theirs
    shares = [share.mean for _, share in good.profile]
    assert shares == sorted(shares)  # the higher the threshold, the more runs are below
    assert shares[-1] == 1.0
    middle = next(share.mean for at, share in good.profile if 1.0 < at < 1.4)
    assert (middle, next(share.mean for at, share in plain.profile if 1.0 < at < 1.4)) == (1.0, 0.0)


def test_runs_that_stopped_at_a_lower_target_are_noticed(tmp_path: Path) -> None:
    stopping = {"stop_at_target": True, "target": 0.6, "target_metric": None}
    written(tmp_path / "a", [error(1, 0.9), error(2, 0.5)], experiment={**stopping, "rounds": 9})
    written(tmp_path / "b", [error(1, 0.9), error(2, 0.7)], experiment={**stopping, "seed": 1})
    found = gather([tmp_path / "a", tmp_path / "b"])
    assert found.stopped == {""}
    assert [run.rounds_to_target for run in found.outcomes] == [2, None]


def test_early_stopping_does_not_cut_others_short(tmp_path: Path) -> None:
    why = {"ended_early": "rmse has not become better in 2 evaluations"}
    written(tmp_path / "a", [error(at, 0.9) for at in (1, 2)], summary=why)
    written(tmp_path / "b", [error(at, 1 / at) for at in (1, 2, 3, 4)], experiment={"seed": 1})
    found = gather([tmp_path / "a", tmp_path / "b"])
    assert found.limits == {"": 4}
    assert [run.value for run in found.outcomes] == [0.9, 0.25]
    assert found.notes == ("early stopping ended these runs, which count by their last evaluation: fedavg (seed 0)",)
    assert gather([tmp_path / "a"]).limits == {"": 2}


def tuned(place: Path, validation: bool, tuning: bool = True) -> Results:
    """Two settings: one is better on the test set, the other on the validation set."""
    values = {"x": (0.5, 0.9), "y": (0.6, 0.8)}
    plan = by_hand([("", name, seed) for name in values for seed in (0, 1)], Measure(tuning=tuning))
    Store(place).keep(plan)
    for case in plan.cases:
        test, other = (each + 0.01 * case.seed for each in values[case.variant])
        more = {"validation": {"loss": 1.0, "rmse": other}} if validation else {}
        written(Store(place).folder(case.name), [error(1, test, **more)], experiment={"seed": case.seed})
    return collect(plan, place)


def test_settings_are_chosen_on_the_validation_set(tmp_path: Path) -> None:
    found = tuned(tmp_path / "with", validation=True)
    top = ranking(found)[0]
    assert (top.variant, found.judged_by) == ("y", "validation rmse")
    assert top.validation is not None
    assert top.value is not None
    assert (top.validation.mean, top.value.mean) == pytest.approx((0.805, 0.605))
    assert "Settings are chosen by validation rmse." in caption(found)
    assert "| validation rmse | test rmse |" in markdown(found)
    assert columns(found)[1]["validation_rmse"] == pytest.approx(0.805)
    without = tuned(tmp_path / "without", validation=False)
    assert ranking(without)[0].variant == "x"
    assert "Settings are chosen by test rmse, as there is no validation set." in caption(without)


def test_the_best_evaluation_is_chosen_on_the_validation_set(tmp_path: Path) -> None:
    plan = by_hand([("", "x", 0)])
    Store(tmp_path).keep(plan)
    rows = [(0.4, 0.9), (0.6, 0.7), (0.5, 0.8)]  # on the test set, on the validation set
    told = [error(n, test, validation={"loss": 1.0, "rmse": other}) for n, (test, other) in enumerate(rows, 1)]
    written(Store(tmp_path).folder(plan.cases[0].name), told)
    assert collect(plan, tmp_path).outcomes[0].best == 0.6


def test_metrics_have_other_names() -> None:
    assert [canonical(name) for name in ("AUC", "root mean-squared error", "mine:Gain", "Gain", "r2")] == [
        "auroc", "rmse", "Gain", "Gain", "r2",
    ]  # fmt: skip


def test_trials_of_an_earlier_version_are_read() -> None:
    told = {"number": 0, "settings": {"local.lr": 0.1}, "accuracy": 0.75, "state": "complete", "steps": {"1": 0.75}}
    trial = _trial({**told, "why": "", "repeats": None})
    assert (trial.value, trial.score, trial.steps, trial.metric.name) == (0.75, 0.75, {1: 0.75}, "accuracy")


def test_methods_are_compared_on_the_test_set(tmp_path: Path) -> None:
    found = tuned(tmp_path, validation=True, tuning=False)
    assert not found.on_validation
    assert found.scores("", "x") == pytest.approx({0: 0.5, 1: 0.51})
    assert ranking(found)[0].variant == "x"


def test_an_old_folder_still_has_its_accuracy() -> None:
    found = gather([OLD])
    assert found.metric.name == "accuracy"
    summary = json.loads((OLD / "summary.json").read_text())
    assert found.outcomes[0].last == summary["final_accuracy"]
    assert digest(found)["measure"]["judged"] == {
        "name": "accuracy", "words": "accuracy", "better": "higher", "share": True,
    }  # fmt: skip


MINE = """
import numpy as np
from torch import nn

from fedkeel import FederatedData


def clients(binary):
    rng = np.random.default_rng(3)
    for shift in (0.0, 0.2, 0.4, 0.6):
        x = rng.normal(size=(60, 3)).astype("float32")
        y = x @ np.array([1.0, -2.0, 0.5]) + shift + 0.1 * rng.normal(size=60)
        yield x, (y > 0.3).astype("int64") if binary else y.astype("float32")


def sensors():
    return FederatedData.from_clients(list(clients(False)), test=0.25, validation=0.2, seed=1)


def wards():
    return FederatedData.from_clients(list(clients(True)), test=0.25, seed=1)


def one_number():
    return nn.Linear(3, 1)
"""
BASE = ["model.name=mine:one_number", "rounds=4", "local.batch_size=10", "clients=4", "per_round=4", "executor=serial"]
SENSORS = ["dataset.name=mine:sensors", "task=regression", *BASE]


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_regression_is_compared_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "study.yaml").write_text("variants: {slow: [local.lr=0.003], quick: [local.lr=0.05]}\n")
    done = in_a_process(
        "compare", "study.yaml", *SENSORS, "--seeds", "0,1", "--target", "0.9", "--out", "here", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "Lower is better." in done.stdout
    assert "quick-seed0: rmse 0." in done.stdout
    slow, quick = table(tmp_path / "here/table.csv")
    assert float(quick["rmse"]) < float(slow["rmse"])
    assert (quick["standing"], quick["better_in"], quick["better"]) == ("best", "2", "lower")
    assert "quick: best here; better than slow in 2 of 2 seeds, -" in done.stdout
    page = (tmp_path / "here/report.html").read_text()
    assert '"words":"rmse","better":"lower","share":false' in page
    assert {"final-rmse.png", "rmse-over-rounds.svg"} <= {path.name for path in (tmp_path / "here/figures").iterdir()}
    for name in ("table.md", "table.csv"):
        assert fedkeel("export", "here", "--out", name, cwd=tmp_path).returncode == 0
        assert "rmse" in (tmp_path / name).read_text()
    again = fedkeel("export", "here", "--metric", "r2", cwd=tmp_path)
    assert "r2_low" in again.stdout
    refused = fedkeel("compare", "study.yaml", *SENSORS, "--metric", "accuracy", "--out", "there", cwd=tmp_path)
    assert "metric: 'accuracy' is not measured by slow; add it to metrics, or choose one of rmse, r2" in refused.stderr


@pytest.mark.slow
def test_a_sweep_chooses_the_rate_with_the_lower_validation_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    words = ["--grid", "local.lr=0.05,0.002", "--seeds", "7,8", "--out", "here"]
    done = in_a_process("sweep", *SENSORS, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best mean: local.lr=0.05, chosen by validation rmse 0." in done.stdout
    assert "; test rmse 0." in done.stdout
    assert "use it: --set local.lr=0.05" in done.stdout
    rows = table(tmp_path / "here/table.csv")
    assert float(rows[0]["validation_rmse"]) < float(rows[1]["validation_rmse"])


@pytest.mark.slow
def test_a_search_makes_the_validation_error_lower(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "mine.py").write_text(MINE)
    words = ["--grid", "local.lr=0.05,0.002", "--search", "3", "--seeds", "7", "--out", "here"]
    done = in_a_process("sweep", *SENSORS, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "local.lr=0.05  validation rmse 0." in done.stdout
    trials = [json.loads(line) for line in (tmp_path / "here/trials.jsonl").read_text().splitlines()]
    assert {trial["metric"]["better"] for trial in trials} == {"lower"}
    top = min(trials, key=lambda trial: trial["value"])
    assert f"best mean: local.lr={top['settings']['local.lr']}, chosen by validation rmse" in done.stdout


@pytest.mark.slow
def test_a_binary_task_is_compared_by_auroc(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    words = ["dataset.name=mine:wards", "task=binary", "metrics=[auroc, log_loss]", *BASE]
    asked = ["--algorithms", "fedavg,fedprox", "--seeds", "0,1", "--out", "here"]
    done = in_a_process("compare", *words, *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "auroc, %" in done.stdout
    assert "Lower is better" not in done.stdout
    first = table(tmp_path / "here/table.csv")[0]
    assert 0 < float(first["auroc"]) <= 1
    assert 0 < float(first["client_auroc"]) <= 1
