"""`compare`, `sweep`, `report` and `export` as a user meets them."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from fedkeel import Experiment
from fedkeel.cli import outcome
from fedkeel.cli.compare import numbers
from fedkeel.cli.outcome import show
from fedkeel.cli.studying import Pace
from fedkeel.errors import InputError
from fedkeel.local.settings import ExecutorSettings
from fedkeel.study.engine import Begun
from fedkeel.study.files import StudyFile
from fedkeel.study.plan import Case, Measure
from fedkeel.study.results import collect
from fedkeel.study.space import SEARCH, TRIALS, Search, Trial
from fedkeel.study.tasks import Ended, Estimate, Moved
from tests.helpers.commands import QUICK, fedkeel, interrupted
from tests.helpers.studies import by_hand, fill
from tests.helpers.studies import row as evaluated

SERIAL = [*QUICK, "executor=serial"]


def compare(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return fedkeel("compare", *SERIAL, *words, cwd=cwd)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("compare")
    done = compare(
        "--algorithms", "fedavg,fedprox", "--seeds", "0-1", "--target", "0.2", "--out", "here", cwd=folder
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def without(*keys: str) -> list[str]:
    return [word for word in SERIAL if word.partition("=")[0] not in keys]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_comparison_prints_its_table_and_where_everything_is(compared: tuple[Path, str]) -> None:
    folder, printed = compared
    assert "4 runs to do" in printed
    assert "fedprox-seed1: accuracy" in printed
    assert "4 of 4 runs" in printed
    assert "fedavg: the reference" in printed
    assert "against fedavg" in printed
    assert "Test accuracy at 3 rounds, seeds 0, 1." in printed
    assert "report  here/report.html" in printed
    assert sorted(path.name for path in (folder / "here").iterdir()) == [
        "comparison.json", "executors.json", "figures", "report.html", "runs", "runs.csv", "table.csv",
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "here/runs").iterdir()) == [
        "fedavg-seed0", "fedavg-seed1", "fedprox-seed0", "fedprox-seed1",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_table_is_what_the_runs_say(compared: tuple[Path, str]) -> None:
    here = compared[0] / "here"
    for row in rows(here / "table.csv"):
        found = [json.loads((here / f"runs/{row['variant']}-seed{s}/summary.json").read_text()) for s in (0, 1)]
        assert float(row["accuracy"]) == pytest.approx(sum(each["final_accuracy"] for each in found) / 2)
        assert (row["finished"], row["failed"], row["compared_at"]) == ("2", "0", "rounds")
        assert "seconds" not in "".join(name for name in row if "virtual" not in name)
    assert len(rows(here / "runs.csv")) == 4


@pytest.mark.slow
def test_the_same_command_repeats_nothing_and_leaves_the_same_table(compared: tuple[Path, str]) -> None:
    folder, _ = compared
    before = (folder / "here/table.csv").read_bytes()
    times = {path: path.stat().st_mtime_ns for path in folder.glob("here/runs/*/summary.json")}
    words = ["--algorithms", "fedavg,fedprox", "--seeds", "0-1", "--target", "0.2", "--out", "here"]
    done = compare(*words, cwd=folder)
    assert done.returncode == 0
    assert "all 4 runs are already done" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert (folder / "here/table.csv").read_bytes() == before


@pytest.mark.slow
def test_more_seeds_and_methods_are_added(tmp_path: Path) -> None:
    first = compare("--algorithms", "fedavg", "--seeds", "0", "--out", "here", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    words = ["--algorithms", "fedavg,fedcm", "--seeds", "0,1", "--out", "here"]
    done = compare(*words, cwd=tmp_path)
    assert "3 runs to do, 1 more is already done" in done.stdout


@pytest.mark.slow
def test_a_dry_run_tells_and_writes_nothing(tmp_path: Path) -> None:
    done = compare("--algorithms", "fedavg,fedasmu", "--seeds", "3", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedasmu-seed3" in done.stdout
    assert "2 runs to do; 2 at a time" in done.stdout
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--algorithms", "fedavg,fedagv"], "algorithms: 'fedagv' is not known; did you mean fedavg or fedagg?"),
        (["--algorithms", "fedavg,fedavg"], "algorithms: fedavg is given twice; keep one of the two"),
        (
            ["--algorithms", "fedavg", "--vary", "fleet.sped_ratio=1,5"],
            "fleet.sped_ratio is not a setting",
        ),
        (
            ["--algorithms", "fedavg", "--vary", "local.lr"],
            "must be KEY=VALUE,VALUE, such as local.lr=0.01,0.1; got 'local.lr'",
        ),
        (["--algorithms", "fedavg", "--vary", "local.lr=1,1"], "local.lr: a value is given twice in '1,1'"),
        (["--algorithms", "fedavg", "--vary", "local.lr=-1"], "local.lr"),
        (["--algorithms", "fedavg", "--seeds", "1,1"], "a seed is given twice in '1,1'"),
        (["--algorithms", "fedavg", "--seeds", "a"], "--seeds must be numbers such as 0,1,2 or 0-4; got 'a'"),
        (["--algorithms", "fedavg,fedcm", "--reference", "fedprox"], "reference: fedprox is not a variant"),
        (["--only", "fedavg"], "only: there are no variants to choose from"),
        (["--algorithms", "fedavg", "--sink", "tensorbord"], "tensorboard"),
        (["--algorithms", "fedbabu,fedlga", "fleet.rho=0.5"], "local.epochs"),
        (
            ["nowhere.yaml", "--algorithms", "fedavg"],
            "experiment file nowhere.yaml cannot be read (No such file or directory); give",
        ),
    ],
)
def test_bad_input_is_a_sentence_before_any_work(words: list[str], told: str, tmp_path: Path) -> None:
    done = compare(*words, "--out", "here", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fedkeel: ")
    assert told in done.stderr
    assert not any(tmp_path.iterdir())


def test_two_variants_with_one_name_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("variants: {FedAvg: [], fedavg: [local.lr=0.1]}\n")
    done = compare("study.yaml", "--out", "here", cwd=tmp_path)
    assert done.returncode == 2
    assert "two runs are called FedAvg-seed0" in done.stderr


@pytest.mark.slow
def test_a_folder_of_something_else_is_left_alone(compared: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = compared
    other = compare("--algorithms", "fedavg,fedprox", "--seeds", "0,1", "local.lr=0.2", "--out", "here", cwd=folder)
    assert other.returncode == 2
    assert "belongs to another comparison (its run fedavg-seed0 has local.lr=0.05, not 0.2)" in other.stderr
    fewer = compare("--algorithms", "fedavg", "--seeds", "0", "--out", "here", cwd=folder)
    assert "belongs to another comparison (its run" in fewer.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("keep")
    full = compare("--algorithms", "fedavg", "--out", "mine", cwd=tmp_path)
    assert (full.returncode, [path.name for path in (tmp_path / "mine").iterdir()]) == (2, ["thesis.txt"])
    assert "holds something else" in full.stderr


@pytest.mark.slow
def test_a_run_that_diverges_is_a_result_of_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("{reference: fedavg, variants: {fedavg: [], wild: [local.lr=1.0e+38]}}")
    done = compare("study.yaml", "--seeds", "0", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wild-seed0: failed: training diverged" in done.stdout
    assert "1 of 1 run failed: training diverged" in done.stdout
    again = compare("study.yaml", "--seeds", "0", "--out", "here", cwd=tmp_path)
    assert "all 2 runs are already done" in again.stdout
    assert "1 of 1 run failed: training diverged" in again.stdout


@pytest.mark.slow
def test_a_comparison_of_which_every_run_diverges_has_a_table_and_a_report(tmp_path: Path) -> None:
    done = compare("--algorithms", "fedavg,fedprox", "--seeds", "0", "local.lr=1.0e+38", "--out", "here", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "report  here/report.html" in done.stdout
    assert [each["failed"] for each in rows(tmp_path / "here" / "table.csv")] == ["1", "1"]
    again = fedkeel("report", "here", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "here/report.html\n")


def test_a_table_that_leaves_the_command_is_never_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {f"a variant with a long name, number {n}": [0.5, 0.6 + n / 10] for n in range(2)}
    measure = Measure(target=0.5, reference=next(iter(scores)))
    plan = by_hand([("", name, seed) for name in scores for seed in (0, 1)], measure)
    runs = {(name, seed): [evaluated(1, each[seed])] for name, each in scores.items() for seed in (0, 1)}
    fill(plan, tmp_path, runs)
    show(collect(plan, tmp_path))
    printed = capsys.readouterr().out.splitlines()
    assert sum("a variant with a long name" in line and " ± " in line for line in printed) == 2, printed


def test_the_terminal_says_why_no_method_is_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"fedavg": [0.5, 0.6], "fedprox": [0.6, 0.5]}
    plan = by_hand([("", name, seed) for name in scores for seed in (0, 1)], Measure(reference="fedavg"))
    fill(plan, tmp_path, {(name, n): [evaluated(1, each[n])] for name, each in scores.items() for n in (0, 1)})
    show(collect(plan, tmp_path))
    printed = capsys.readouterr().out
    assert "No method is clearly best: the differences between fedavg and fedprox may be noise; more seeds" in printed
    assert "*" not in printed


def test_a_narrow_terminal_has_the_first_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(outcome, "console", Console(file=printed, width=30, force_terminal=True, color_system=None))
    outcome._print(["", "accuracy, %", "against b", "runs"], [["a", "50.00 ± 1.00", "+1.00", "2 of 2"]], "")
    assert [line.split() for line in printed.getvalue().splitlines()] == [
        ["accuracy,", "%", "against", "b"],
        ["a", "50.00", "±", "1.00", "+1.00"],
        ["(too", "wide", "for", "this", "terminal:", "runs)"],
    ]


def test_a_report_against_another_reference_leaves_the_usual_one(compared: tuple[Path, str]) -> None:
    usual = (compared[0] / "here" / "report.html").read_bytes()
    done = fedkeel("report", "here", "--reference", "fedprox", cwd=compared[0])
    assert done.stdout == "here/report-against-fedprox.html\n"
    assert (compared[0] / "here" / "report.html").read_bytes() == usual
    assert (compared[0] / "here" / "report-against-fedprox.html").read_bytes() != usual


@pytest.mark.slow
def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        'reference: "b [/x]"\nvariants: {"b [/x]": [], "FedAvg [lr=0.1]": [local.lr=0.1]}\n'
    )
    done = compare("study.yaml", "--seeds", "0,1", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "against b [/x]" in done.stdout
    assert "FedAvg [lr=0.1]: " in done.stdout


@pytest.mark.slow
def test_an_experiment_file_of_show_is_compared(tmp_path: Path) -> None:
    shown = fedkeel("show", *SERIAL, "algorithm=fedprox", "algorithm.mu=0.7", cwd=tmp_path)
    (tmp_path / "my.yaml").write_text(shown.stdout)
    done = fedkeel(
        "compare", "my.yaml", "--algorithms", "fedasmu,fedavg", "--seeds", "0", "--vary", "fleet.speed_ratio=1,5",
        "--out", "here", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "virtual seconds" in done.stdout  # a method is asynchronous
    folders = sorted(path.name for path in (tmp_path / "here/runs").iterdir())
    assert folders == [f"fleet.speed_ratio={ratio}-{name}-seed0" for ratio in (1, 5) for name in ("fedasmu", "fedavg")]
    plain = Experiment.load(tmp_path / "here/runs/fleet.speed_ratio=5-fedavg-seed0/experiment.yaml")
    assert (plain.algorithm.name, plain.fleet.speed_ratio) == ("fedavg", 5)


@pytest.mark.slow
def test_a_sweep_says_which_setting_to_use(tmp_path: Path) -> None:
    words = ["--grid", "local.lr=0.001,0.1", "--seeds", "7,8", "--out", "here"]
    done = fedkeel("sweep", *SERIAL, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best mean: local.lr=0.1" in done.stdout
    assert "use it: --set local.lr=0.1" in done.stdout
    assert len(rows(tmp_path / "here/runs.csv")) == 4


@pytest.mark.slow
@pytest.mark.extras
def test_a_search_goes_on_past_failures_and_recommends_from_its_table(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["--search", "6", "--grid", "per_round=2,8", "--grid", "clients=10,4", "--seeds", "1,2", "--out", "here"]
    done = fedkeel("sweep", *without("per_round", "clients"), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"trial \d/6  per_round=8, clients=4  failed: per_round must be at most .*; got 8", done.stdout)
    assert "(tried before)" in done.stdout
    table = rows(tmp_path / "here/table.csv")
    best = max(table, key=lambda row: float(row["accuracy"]))["variant"]
    assert f"best mean: {best}" in done.stdout
    assert f"use it: --set {best.replace(',', '')}" in done.stdout
    assert "Test accuracy at 3 rounds, seeds 1, 2." in done.stdout


@pytest.mark.slow
@pytest.mark.extras
def test_a_search_recommends_where_trials_are_compared(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["--search", "3", "--grid", "algorithm=fedavg,fedasmu", "--seeds", "0,1"]
    done = fedkeel("sweep", *SERIAL, *words, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = rows(tmp_path / "here/table.csv")
    assert {row["compared_at"] for row in table} == {"time"}
    best = max(table, key=lambda row: float(row["accuracy"]))["variant"]
    assert f"best mean: {best}" in done.stdout
    again = fedkeel("sweep", *SERIAL, *words[2:], "--out", "grid", cwd=tmp_path)
    assert done.stdout.splitlines()[-2:] == again.stdout.splitlines()[-2:]


@pytest.mark.slow
@pytest.mark.extras
def test_a_search_of_impossible_settings_alone_says_so(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["--search", "1", "--grid", "clients=10,4", "--grid", "per_round=2,8", "--out", "here"]
    small = without("clients", "per_round")
    asked = Search.of(StudyFile(), small, ["clients=10,4", "per_round=2,8"], [], [100], 1)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / SEARCH).write_text(json.dumps(asked.told()))
    failed = Trial(0, {"clients": 4, "per_round": 8}, 0.0, "failed", why="per_round: 8 is not accepted")
    (tmp_path / "here" / TRIALS).write_text(json.dumps(asdict(failed)) + "\n")
    done = fedkeel("sweep", *small, *words, "--seeds", "100", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "fedkeel: no trial was completed\n")


@pytest.mark.slow
@pytest.mark.extras
def test_a_search_that_is_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["--search", "2", "--range", "local.lr=0.01..1", "--seeds", "1", "--out", "here", *without("rounds")]
    command = [sys.executable, "-c", "from fedkeel.cli import main; main()", "sweep", *words, "rounds=1000000"]
    code, told = interrupted(command, tmp_path, tmp_path / "here/runs/trial0000-seed1/history.jsonl")
    assert code == 130
    assert "stopping: a round that is not over in" in told
    assert "fedkeel: stopped; 0 of 2 trials are done, and the same command continues from here\n" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "grid: there is nothing to try"),
        (
            ["--grid", "local.learning_rate=1,2"],
            "local.learning_rate=1: local.learning_rate is not a setting; did you mean local.lr?",
        ),
        (["--grid", "local.lr=1", "--grid", "local.lr=2"], "local.lr is given twice; give all its values"),
        (["--range", "local.lr=0.1..1"], "--range needs --search; add --search N, or use --grid"),
    ],
)
def test_a_sweep_of_nonsense_is_refused(words: list[str], told: str, tmp_path: Path) -> None:
    done = fedkeel("sweep", *SERIAL, *words, cwd=tmp_path)
    assert (done.returncode, any(tmp_path.iterdir())) == (2, False)
    assert told in done.stderr


@pytest.mark.slow
def test_runs_made_one_by_one_are_reported_together(compared: tuple[Path, str], tmp_path: Path) -> None:
    here = compared[0] / "here/runs"
    names = [str(here / name) for name in ("fedavg-seed0", "fedavg-seed1", "fedprox-seed0", "fedprox-seed1")]
    done = fedkeel("report", *names, "--out", "all.html", "--figures", "drawn", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedprox" in (tmp_path / "all.html").read_text()
    assert any(path.suffix == ".svg" for path in (tmp_path / "drawn").iterdir())
    told = fedkeel("export", *names, cwd=tmp_path)
    assert [row["variant"] for row in csv.DictReader(told.stdout.splitlines())] == ["fedavg", "fedprox"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "nowhere"], "nowhere: there is no such folder"),
        (["report", "."], "holds neither a run nor a comparison"),
        (["export", "here", "--format", "parquet"], "--format parquet cannot be printed; add --out FILE.parquet"),
        (["export", "here", "--what", "runs", "--out", "a.tex"], "format must be csv or parquet for runs; got latex"),
        (["export", "here", "--out", "table.doc"], "does not end in the name of a format"),
        (["export", "here", "--reference", "mine"], "reference: mine is not a variant; choose one of fedavg, fedprox"),
    ],
)
def test_what_cannot_be_told_is_refused(words: list[str], told: str, compared: tuple[Path, str]) -> None:
    done = fedkeel(*words, cwd=compared[0])
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.slow
def test_a_broken_run_is_named(compared: tuple[Path, str], tmp_path: Path) -> None:
    good = compared[0] / "here/runs/fedavg-seed0"
    bad = tmp_path / "bad"
    bad.mkdir()
    for name in ("experiment.yaml", "run.json", "summary.json"):
        (bad / name).write_text((good / name).read_text())
    (bad / "history.jsonl").write_text("{}\nnonsense\n")
    done = fedkeel("report", "bad", cwd=tmp_path)
    assert done.returncode == 2
    assert "history.jsonl is damaged (line 2" in done.stderr


@pytest.mark.slow
def test_a_run_that_goes_on_is_reported_as_such(compared: tuple[Path, str], tmp_path: Path) -> None:
    good = compared[0] / "here/runs/fedavg-seed0"
    half = tmp_path / "half"
    half.mkdir()
    for name in ("experiment.yaml", "run.json", "history.jsonl", "rounds.jsonl", "clients.jsonl"):
        (half / name).write_text((good / name).read_text())
    done = fedkeel("report", "half", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "half is not finished" in done.stderr
    (half / "history.jsonl").write_text("")
    none = fedkeel("report", "half", cwd=tmp_path)
    assert (none.returncode, "no evaluation yet" in none.stderr) == (2, True)


def test_seeds_are_numbers_or_ranges() -> None:
    assert numbers("0,1,2") == [0, 1, 2]
    assert numbers("3-5, 9") == [3, 4, 5, 9]
    assert numbers(None) is None
    for text in ("x", "1-", "5-3", "0-100000", "-1"):
        with pytest.raises(InputError, match="seeds"):
            numbers(text)


def test_what_is_left_is_reckoned_from_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("fedkeel.cli.studying.monotonic", lambda: clock[0])
    cases = [Case(name, "", name, 0, Experiment()) for name in ("short", "long")]
    settings = ExecutorSettings(kind="serial")
    estimates = {"short": Estimate(settings, 10.0, 1), "long": Estimate(settings, 30.0, 1)}
    pace = Pace(Begun(cases, 3, estimates, 1))
    assert (pace.left, pace.share, str(pace)) == (40.0, 0.0, "1 of 3 runs, 40 s left")
    pace.take(Moved("short", 0.0, 0, None))
    clock[0] += 20
    pace.take(Moved("short", 0.9, 5, None))
    pace.take(Ended("short", "finished"))
    assert pace.share == 0.25
    assert pace.left == pytest.approx(60)  # it went half as fast as expected
    assert str(pace) == "2 of 3 runs, 1 min left"
