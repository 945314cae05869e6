"""Run folders of other versions: read, resumed, or refused with a sentence.

`data/schema-1-*` were made by a version whose folders had no `run.json` and whose checkpoints were of format 1.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedkeel
from fedkeel import Experiment, InputError, resume, run
from fedkeel.record import schema
from fedkeel.record.checkpoints import FORMAT
from fedkeel.record.rows import KINDS
from fedkeel.record.runs import RunRecord
from fedkeel.record.subject import Subject
from tests.helpers import federation
from tests.helpers.commands import fedkeel as command
from tests.helpers.folders import faulty, left, resumed, rows, same, stopped

DATA = Path(__file__).parent / "data"
QUICK = [
    "model=linear", "dataset.train_limit=60", "dataset.test_limit=20", "clients=3", "rounds=2", "executor.kind=serial",
    "executor.stack=0", "executor.channels_last=false",
]  # fmt: skip


def given() -> dict[str, Any]:
    return {"data": federation.data(), "model": federation.net()}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run that an earlier version finished."""
    return Path(shutil.copytree(DATA / "schema-1-complete", tmp_path / "old"))


@pytest.fixture
def old_half(tmp_path: Path) -> Path:
    """A run that an earlier version stopped after its first round."""
    return Path(shutil.copytree(DATA / "schema-1-stopped", tmp_path / "half"))


def test_a_new_folder_says_its_version(tmp_path: Path) -> None:
    run(faulty("fedavg"), tmp_path / "a", **given())
    told = json.loads((tmp_path / "a" / "run.json").read_text())
    assert told["schema"] == 2
    assert told["fedkeel"] == fedkeel.__version__
    assert schema.check(tmp_path / "a") == 2


@pytest.mark.slow
def test_an_older_folder_is_read_plotted_and_followed(old: Path, tmp_path: Path) -> None:
    assert schema.check(old) == 1
    record = RunRecord.read(old)
    assert len(record.history) == 3
    done = command("plot", "old", "--out", "a.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").stat().st_size > 1000
    for what in ("timeline", "staleness", "weights", "rates"):
        assert command("plot", "old", "--what", what, "--out", f"{what}.png", cwd=tmp_path).returncode == 0
    found = [*fedkeel.follow(old)]
    for name, kind in KINDS.items():
        pairs = zip([row.plain() for row in found if isinstance(row, kind)], rows(old, name), strict=True)
        assert all(told == {**told, **known} for told, known in pairs)
    assert len(found) > 20


def test_a_run_of_an_earlier_version_comes_out_the_same_today(old: Path, tmp_path: Path) -> None:
    """Names and keys of all files are as they were."""
    run(Experiment.load(old / "experiment.yaml"), tmp_path / "new", **given())
    told, known = left(tmp_path / "new"), left(old)
    assert {*told} - {*known} == {"run.json", "labels.json", "checkpoint", "best_model.safetensors"}
    assert {*known} <= {*told}
    for name in KINDS:
        assert [[*row] for row in rows(tmp_path / "new", name)] == [[*row] for row in rows(old, name)]
    assert {*known["summary.json"]} <= {*told["summary.json"]}


def test_an_older_run_with_a_checkpoint_cannot_be_resumed(old_half: Path) -> None:
    before = left(old_half)
    described, checkpoint = str(old_half / "experiment.yaml"), old_half / "checkpoint" / "round-1"
    with pytest.raises(InputError) as error:
        resume(old_half, **given())
    assert str(error.value) == (
        f"resume: checkpoint {checkpoint} cannot be used: it was written by an earlier version of fedkeel (its format "
        f"is 1, not {FORMAT}); run it again from the start: fedkeel.run(fedkeel.Experiment.load({described!r}), "
        "data=..., model=...)"
    )
    assert left(old_half) == before
    run(Experiment.load(described), old_half.parent / "again", **given())  # that works
    assert (old_half.parent / "again" / "summary.json").exists()


@pytest.mark.slow
def test_an_older_run_without_a_checkpoint_begins_anew(old_half: Path) -> None:
    shutil.rmtree(old_half / "checkpoint")
    _, told = resumed(old_half, **given())
    assert told == [f"{old_half} has no checkpoint yet: the run starts again from round 1"]
    assert schema.check(old_half) == 2
    run(Experiment.load(old_half / "experiment.yaml"), old_half.parent / "whole", **given())
    stored = [Experiment.load(path / "experiment.yaml") for path in (old_half, old_half.parent / "whole")]
    # As files, settings are missing that did not exist yet.
    first, second = (each.replace(executor=each.executor.completed) for each in stored)
    assert first.model_dump() == second.model_dump()
    shutil.copy(old_half.parent / "whole" / "experiment.yaml", old_half)
    same(old_half.parent / "whole", old_half)


def test_the_way_out_is_a_command_where_nothing_was_given_in_python() -> None:
    subject = Subject(Experiment())
    described = Path("my runs/a/experiment.yaml")
    assert subject.other_way(described, earlier=True) == (
        "run it again from the start: fedkeel run 'my runs/a/experiment.yaml'"
    )
    assert subject.other_way(described, earlier=False) == "use that version of fedkeel"


@pytest.mark.slow
def test_the_description_in_a_run_folder_is_an_experiment(tmp_path: Path) -> None:
    assert command("run", *QUICK, "--out", "a", cwd=tmp_path).returncode == 0
    done = command("run", "a/experiment.yaml", "--out", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same(tmp_path / "a", tmp_path / "b")


# Later versions.


def test_a_folder_of_a_later_version_is_refused(old: Path, tmp_path: Path) -> None:
    for more, version in (
        ('"fedkeel": "9.1", "more": []', "fedkeel 9.1"),
        ('"more": []', "a later version of fedkeel"),
        ('"fedkeel": null', "a later version of fedkeel"),
        (f'"fedkeel": "{fedkeel.__version__}"', "a later version of fedkeel"),
        ('"fedkeel": "9\\n1"', "fedkeel '9\\n1'"),
    ):
        (old / "run.json").write_text(f'{{"schema": 3, {more}}}')
        for read in (RunRecord.read, fedkeel.follow, resume):
            with pytest.raises(InputError) as error:
                read(old)
            assert str(error.value) == (
                f"run folder {old}: its schema must be at most 2; got 3, which {version} wrote; use that version"
            )
    (old / "experiment.yaml").write_text("quantum: true")  # nobody tries to understand the rest of it
    for words in (["run", "--resume", "old"], ["plot", "old"]):
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("fedkeel: run folder old: its schema must be at most 2; got 3")


WRONG = ["null", '"2"', "true", "1", "2.0", "[2]"]


@pytest.mark.parametrize("text", ["", "{", "[]", "2", "{}", "[" * 9999, *(f'{{"schema": {each}}}' for each in WRONG)])
def test_a_damaged_file_is_told(old: Path, text: str) -> None:
    (old / "run.json").write_text(text)
    for read in (RunRecord.read, fedkeel.follow, resume):
        with pytest.raises(
            InputError,
            match=r"^run folder .*: run.json is damaged; use a copy of the folder, or run the experiment again$",
        ):
            read(old)


def test_a_file_that_cannot_be_read_is_told(old: Path) -> None:
    (old / "run.json").mkdir()
    with pytest.raises(InputError, match=r"run.json cannot be read \(Is a directory\)"):
        RunRecord.read(old)


def test_checkpoints_of_a_later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fedkeel.record.checkpoints.FORMAT", FORMAT + 1)
        patch.setattr("fedkeel.__version__", "9.1")
        stopped(faulty("fedavg"), tmp_path / "a", 2, **given())
    before = left(tmp_path / "a")
    told = rf"by fedkeel 9.1 \(its format is {FORMAT + 1}, not {FORMAT}\); use that version of fedkeel$"
    with pytest.raises(InputError, match=told):
        resume(tmp_path / "a", **given())
    assert left(tmp_path / "a") == before
