"""The ready experiments and studies: every file loads, and a study that was compared becomes a table of a page."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedkeel import Experiment
from fedkeel.errors import InputError
from fedkeel.record.runs import RunRecord
from fedkeel.study.engine import execute
from fedkeel.study.files import MARKS, StudyFile, comparison
from fedkeel.study.plan import Comparison, Measure
from fedkeel.study.results import Outcome
from fedkeel.study.store import Store
from tests.helpers.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import studies

READY = sorted((ROOT / "experiments").glob("*.yaml"))
COMPARISONS = [path for path in READY if {*MARKS} & {*yaml.safe_load(path.read_text())}]
STUDIES = sorted((ROOT / "experiments" / "studies").glob("*.yaml"))
STORED = sorted((ROOT / "benchmarks" / "results").glob("study-*.json"))
STUDENT = 12.7062047
"""The 97.5 % quantile of Student's t with one degree of freedom."""


@pytest.mark.parametrize("path", [each for each in READY if each not in COMPARISONS], ids=lambda path: path.stem)
def test_every_experiment_loads(path: Path) -> None:
    assert Experiment.load(path).rounds >= 30


@pytest.mark.parametrize("path", [*COMPARISONS, *STUDIES], ids=lambda path: path.stem)
def test_every_case_of_every_study_is_an_experiment_of_its_own(path: Path) -> None:
    plan = comparison(StudyFile.read(path))
    assert len({case.experiment.model_dump_json() for case in plan.cases}) == len(plan.cases)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_columns_of_a_study_fit_what_it_is_compared_by(path: Path) -> None:
    study = studies.read(path.stem)
    assert comparison(study).measure.at == (study.at or "rounds")


def test_every_study_has_stored_results() -> None:
    assert {path.stem for path in STUDIES} == {path.stem.removeprefix("study-") for path in STORED}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_pages_have_the_tables_of_the_stored_results(path: Path) -> None:
    name = path.stem.removeprefix("study-")
    pages = [page.read_text() for page in studies.PAGES.glob("*.md")]
    assert any(f"<!-- study {name} -->\n\n{studies.stored(name)}\n<!-- end of {name} -->" in page for page in pages)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_study_has_the_runs_of_its_stored_results(path: Path) -> None:
    plan = comparison(studies.read(path.stem.removeprefix("study-")))
    stored = {(row["scene"], row["variant"], row["seed"]) for row in json.loads(path.read_text())}
    assert {(case.scene, case.variant, case.seed) for case in plan.cases} == stored


BASE = (
    "{model: linear, dataset: {train_limit: 60, test_limit: 50}, clients: 3, per_round: 2, rounds: 3, "
    "executor: {kind: serial, stack: 0, channels_last: false}, local: {epochs: 2, lr: 0.1}, evaluate_local: true}\n"
)
TINY = (
    "{about: a test, base: base.yaml, target: 0.01, last: 1, at: rounds, until: 2, reference: plain, seeds: [0, 1], "
    "scenes: {one: [], two: [local.lr=0.02]}, variants: {plain: [], slow: [local.lr=0.001], "
    "bounds: [algorithm=fedent, algorithm.estimate_bounds=true], wild: [local.lr=1.0e+38]}}\n"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study, a page for its table, and nothing stored yet."""
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "page.md").write_text("before\n<!-- study tiny -->\nold\n<!-- end of tiny -->\nafter\n")
    for name in ("STUDIES", "RESULTS", "PAGES"):
        monkeypatch.setattr(studies, name, tmp_path)
    return tmp_path


def kept(place: Path, **chosen: Any) -> Comparison:
    """The plan of the study, in its folder."""
    plan = comparison(StudyFile.read(place / "tiny.yaml"), **chosen)
    Store(place / "out").keep(plan)
    return plan


@pytest.mark.slow
def test_a_comparison_becomes_the_table_of_a_page(place: Path) -> None:
    execute(kept(place, target=0.999).cases, place / "out", jobs=2)  # what the file says is published
    text = studies.publish("tiny", place / "out")
    assert (place / "page.md").read_text() == f"before\n<!-- study tiny -->\n\n{text}\n<!-- end of tiny -->\nafter\n"
    assert studies.stored("tiny") == text
    assert text.count("| plain |") == text.count("| wild | stopped: seed 0: training diverged") == 2
    assert "| gradient bound | smoothness |" in text.splitlines()[2]

    plain, slow = ([accuracies(place, variant, seed) for seed in (0, 1)] for variant in ("plain", "slow"))
    gaps = [100 * (ours[1] - theirs[1]) for ours, theirs in zip(slow, plain, strict=True)]
    assert gaps[0] != gaps[1]
    half = STUDENT * abs(gaps[0] - gaps[1]) / 2
    assert f"| {sum(gaps) / 2:+.2f} ± {half:.2f} |" in next(line for line in text.splitlines() if "| slow |" in line)

    first = json.loads((place / "study-tiny.json").read_text())[0]
    curve = plain[0]
    assert len(curve) == 3
    assert (first["round"], first["accuracy"], first["best_accuracy"]) == (2, curve[1], max(curve[:2]))
    assert first["mean_accuracy"] == pytest.approx(sum(curve[:2]) / 2)
    assert (first["rounds_to_target"], first["updates_to_target"], first["updates"]) == (1, 2, 4)
    assert 0 < first["seconds_to_target"] < first["virtual_seconds"]
    assert first["bytes_to_target"] == (first["bytes_up"] + first["bytes_down"]) / 2
    assert first["rates"] == [0.1, 0.1]
    spread = json.loads(history(place, "plain", 0)[1])["local_accuracy"]
    assert first["local_accuracy"] == pytest.approx(spread)


def history(place: Path, variant: str, seed: int) -> list[str]:
    return (place / "out" / "runs" / f"one-{variant}-seed{seed}" / "history.jsonl").read_text().splitlines()


def accuracies(place: Path, variant: str, seed: int) -> list[float]:
    return [json.loads(line)["accuracy"] for line in history(place, variant, seed)]


def test_only_a_finished_comparison_of_the_whole_study_is_published(place: Path) -> None:
    kept(place, only=["plain", "slow", "bounds"])
    with pytest.raises(InputError, match=r"is not complete \(no run of wild\)"):
        studies.publish("tiny", place / "out")
    plan = kept(place)
    with pytest.raises(InputError, match=r"is not complete \(the run one-plain-seed0: not begun\)"):
        studies.publish("tiny", place / "out")
    Store(place / "out").fail(plan.cases[0].name, "OSError", "the disk is full")
    with pytest.raises(InputError, match=r"is not complete \(the run one-plain-seed0: the disk is full\)"):
        studies.publish("tiny", place / "out")
    assert not (place / "study-tiny.json").exists()
    assert "old" in (place / "page.md").read_text()


def test_runs_with_other_settings_are_not_published(place: Path) -> None:
    kept(place, overrides=["rounds=2"])
    with pytest.raises(InputError, match=r"belongs to another comparison \(its run one-plain-seed0 has rounds"):
        studies.publish("tiny", place / "out")


def diverged(place: Path) -> None:
    """A comparison with nothing but runs that diverged: complete, and quick."""
    for case in kept(place).cases:
        Store(place / "out").fail(case.name, "DivergenceError", "training diverged")


def test_a_page_without_the_end_of_a_table_is_left_alone(place: Path) -> None:
    diverged(place)
    (place / "page.md").write_text("<!-- study tiny -->\nold\n")
    with pytest.raises(InputError, match=r"page page\.md: <!-- study tiny --> has no end; add <!-- end of"):
        studies.publish("tiny", place / "out")
    assert (place / "page.md").read_text() == "<!-- study tiny -->\nold\n"
    assert not (place / "study-tiny.json").exists()


def test_a_study_without_a_place_in_a_page_is_only_stored(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diverged(place)
    (place / "page.md").write_text("nothing\n")
    text = studies.publish("tiny", place / "out")
    assert "| slow | stopped: seed 0: training diverged; seed 1: training diverged |" in text
    assert studies.stored("tiny") == text
    assert "has <!-- study tiny -->: the results are only stored" in capsys.readouterr().err


def test_what_is_not_there_is_told_in_a_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, message in (
        (["show", "tinny"], r"study: 'tinny' is not known; did you mean tiny\?"),
        (["show", "tiny"], "study tiny: no results are stored; first: studies.py publish tiny DIR"),
        (["publish", "tiny", str(place / "nowhere")], "comparison.json is missing or damaged"),
    ):
        monkeypatch.setattr(sys, "argv", ["studies.py", *words])
        with pytest.raises(SystemExit, match=message):
            studies.main()


def row(variant: str, seed: int, seconds: float | None, end: float = 900.0, accuracy: float = 0.7) -> dict[str, Any]:
    told = {"scene": "", "variant": variant, "seed": seed, "accuracy": accuracy, "report": {}, "virtual_seconds": end}
    reached = {"updates_to_target": seconds and seconds / 10, "bytes_to_target": seconds and seconds * 2e6}
    return {**told, "seconds_to_target": seconds, **reached}


@pytest.mark.parametrize("at", ["time", "uploads", "bytes"])
def test_a_study_not_compared_by_rounds_tells_virtual_seconds_uploads_and_bytes(at: str) -> None:
    study = StudyFile(target=0.7, at=at, reference="plain")
    rows = [row("plain", 0, 400.0), row("plain", 1, None), row("fast", 0, 50.0), row("fast", 1, 200.0)]
    rows += [row("one, late", 0, 500.0, accuracy=0.712), row("never", 0, 100.0), row("never", 1, None)]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in studies.table(study, rows).splitlines()]
    assert lines[0][1:] == [
        "final accuracy",
        "final accuracy, against plain",
        "virtual seconds to 70%",
        "uploads to 70%",
        "MB to 70%, up and down",
        "smallest speed-up over plain",
    ]
    assert lines[2:] == [
        ["plain", "70.00 ± 0.00", "", "400, -", "40, -", "800, -", ""],
        ["fast", "70.00 ± 0.00", "+0.00 ± 0.00", "50, 200", "5, 20", "100, 400", "> 4.50"],
        ["one, late", "71.20", "+1.20", "500", "50", "1000", "0.80"],
        ["never", "70.00 ± 0.00", "+0.00 ± 0.00", "100, -", "10, -", "200, -", "-"],
    ]


def test_a_study_at_equal_time_also_tells_accuracies_after_equally_many_uploads() -> None:
    study = StudyFile(target=0.7, at="time", reference="plain")
    rows = [row("plain", 0, 400.0) | {"uploads": 210, "accuracy_at_uploads": 0.66}]
    rows += [row("fast", 0, 50.0) | {"uploads": 210, "accuracy_at_uploads": 0.61}]
    header, _, *lines = (line.split("|")[1:-1] for line in studies.table(study, rows).splitlines())
    assert [cell.strip() for cell in header[-2:]] == ["after 210 uploads", "after 210 uploads, against plain"]
    assert [[cell.strip() for cell in line[-2:]] for line in lines] == [["66.00", ""], ["61.00", "-5.00"]]


@pytest.mark.slow
def test_equal_uploads_are_as_many_as_the_run_with_the_fewest_had(place: Path) -> None:
    text = (place / "tiny.yaml").read_text().replace("at: rounds, until: 2", "at: time")
    wide = "plain: [], slow: [per_round=3], wild: [local.lr=1.0e+38]}}"
    (place / "tiny.yaml").write_text(text.partition("plain: [],")[0] + wide)
    execute(kept(place).cases, place / "out", jobs=2)
    studies.publish("tiny", place / "out")
    found = {(each["variant"], each["seed"]): each for each in json.loads((place / "study-tiny.json").read_text())[:6]}
    assert {each.get("uploads") for each in found.values()} == {6, None}  # three rounds of two
    assert found["plain", 0]["accuracy_at_uploads"] == accuracies(place, "plain", 0)[2]
    assert found["slow", 0]["accuracy_at_uploads"] == accuracies(place, "slow", 0)[1]


def test_nothing_is_compared_with_a_reference_that_diverged() -> None:
    study = StudyFile(target=0.7, at="time", reference="plain")
    lost = {"scene": "", "variant": "plain", "seed": 1, "diverged": "training diverged"}
    text = studies.table(study, [row("plain", 0, 400.0), lost, row("fast", 0, 50.0)])
    assert "against" not in text
    assert "speed-up" not in text
    assert "| plain | stopped: seed 1: training diverged |" in text


def outcome(folder: Path, compared: int, target: float) -> Outcome:
    """Four evaluations, of which so many lie before the point where runs are compared."""
    evaluations = [
        {"round": n, "virtual_seconds": 7.5 * n, "updates": 3 * n, "bytes_up": 10 * n, "bytes_down": n, "accuracy": a}
        for n, a in ((2, 0.5), (4, 0.7), (6, 0.6), (8, 0.8))
    ]
    arrivals = [{"round": n, "learning_rates": [0.1 / n, 0.3 / n]} for n in range(1, 9)]
    (folder / "clients.jsonl").write_text("".join(json.dumps(each) + "\n" for each in arrivals))
    record = RunRecord(folder, {}, evaluations)
    measure = Measure(last=2, target=target)
    return Outcome("a", "", "v", 0, folder, state="finished", record=record, kept=compared, measure=measure)


def test_only_what_lies_before_the_point_of_comparison_counts(tmp_path: Path) -> None:
    keys = ("rounds_to_target", "seconds_to_target", "updates_to_target", "bytes_to_target")
    found = studies.row(outcome(tmp_path, 3, 0.7))
    assert [found[key] for key in keys] == [4, 30.0, 12, 44]
    assert (found["accuracy"], found["mean_accuracy"]) == (pytest.approx(0.65), pytest.approx(0.6))
    assert (found["best_accuracy"], found["round"], found["virtual_seconds"]) == (0.7, 6, 45.0)
    assert found["rates"] == pytest.approx((0.2, 0.2 / 6))
    found = studies.row(outcome(tmp_path, 3, 0.8))
    assert [found[key] for key in keys] == [None] * 4
    found = studies.row(outcome(tmp_path, 4, 0.8))
    assert [found[key] for key in keys] == [8, 60.0, 24, 88]
    assert found["rates"] == pytest.approx((0.2, 0.2 / 8))


def test_errors_are_means_over_the_rounds_that_count_and_that_tell(tmp_path: Path) -> None:
    told = [{"round": n, "error_completed": 0.1 * n} if n != 2 else {"round": n} for n in range(1, 9)]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    found = studies.row(outcome(tmp_path, 2, 0.7))  # up to round 4
    assert found["report"] == {"error_completed": pytest.approx((0.1 + 0.3 + 0.4) / 3)}
    text = studies.table(StudyFile(target=0.7), [found])
    assert "| error completed |" in text
    assert "| 0.267 |" in text
