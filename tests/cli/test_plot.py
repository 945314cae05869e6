"""`fedkeel plot`: which runs it draws, and which options it refuses."""

from pathlib import Path

import pytest

from fedkeel.record.runs import RunRecord
from tests.helpers.commands import fedkeel
from tests.helpers.studies import by_hand, fill, row, write_run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str, bool]]:
    """(Folders of the runs, horizontal axis, whether seeds are separate) of every figure, which is not made."""
    found: list[tuple[list[str], str, bool]] = []

    def draw(runs: list[RunRecord], _: list[Path], x: str, separate: bool) -> None:
        found.append(([run.path.name for run in runs], x, separate))

    monkeypatch.setattr("fedkeel.report.curves.learning_curves", draw)
    return found


def test_runs_and_all_runs_of_comparisons_are_drawn(tmp_path: Path, drawn: list[tuple[list[str], str, bool]]) -> None:
    plan = by_hand([("", "a", 0), ("", "a", 1), ("", "b", 0)])
    fill(plan, tmp_path / "both", {("a", 0): [row(1, 0.5)], ("b", 0): [row(1, 0.5)]})
    write_run(tmp_path / "single", [row(1, 0.5)])
    done = fedkeel("plot", "both", "single", "--seeds", "separate", "--x", "updates", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("curves.png\n", "")
    assert drawn == [(["a-0", "b-0", "single"], "updates", True)]
    assert fedkeel("plot", "single", cwd=tmp_path).returncode == 0
    assert drawn[1:] == [(["single"], "round", False)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--what", "rates", "--x", "updates"], "--x needs --what curves, and this is --what rates; remove it"),
        (
            ["run", "--what", "weights", "--seeds", "separate"],
            "--seeds needs --what curves, and this is --what weights",
        ),
        (["run", "--first", "3"], "--first needs --what timeline, and this is --what curves; remove it"),
        (["run", "run", "--what", "timeline"], "runs: a timeline shows one run, and 2 are given; choose one of them"),
        (["run", "--out", "a.gif"], "out must be a file name that ends in .png or .svg or .pdf; got a.gif"),
        (["empty"], "run folder empty has no evaluation yet; wait for the first one"),
        (["planned"], "planned: no run of this comparison has begun yet; run it first"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_advice(words: list[str], said: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", [row(1, 0.5)])
    write_run(tmp_path / "empty", [])
    fill(by_hand([("", "a", 0)]), tmp_path / "planned", {})
    done = fedkeel("plot", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedkeel: {said}")
