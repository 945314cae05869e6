"""Run folders: who may have one, what is in it when something goes wrong, and what is refused before a run."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedkeel import Experiment, InputError, RoundEnd, run
from fedkeel.errors import FedkeelError, MishapError
from fedkeel.local.executors import choose
from fedkeel.record import folder as folders
from fedkeel.record import lock
from fedkeel.record.checkpoints import Checkpoints
from fedkeel.record.folder import RunFolder, check_free, check_space
from fedkeel.record.rowfile import RowFile
from fedkeel.record.rows import Arrivals, Evaluation
from fedkeel.record.subject import Subject
from tests.helpers import federation
from tests.helpers.disk import largest_file
from tests.helpers.folders import faulty, left, resumed, rows, same


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(lock, "_PATIENCE", 1)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here


def test_new_folders_are_claimed_one_by_one(tmp_path: Path) -> None:
    taken = [RunFolder.below(tmp_path, Subject(Experiment(name="a"))) for _ in range(3)]
    assert [folder.path.name for folder in taken] == ["a", "a-2", "a-3"]
    for folder in taken:
        folder.__exit__()


def test_only_one_run_gets_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(tmp_path / "a", Subject(Experiment())):
        monkeypatch.setattr("fedkeel.record.folder.check_free", lambda _: None)  # as if both had looked at once
        with pytest.raises(InputError, match="not empty"):
            RunFolder.create(tmp_path / "a", Subject(Experiment()))


def test_a_run_that_was_begun_a_moment_ago_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder.create(tmp_path / "a", Subject(Experiment(seed=1))).close()
    before = left(tmp_path / "a")
    monkeypatch.setattr("fedkeel.record.folder.check_free", lambda _: None)
    for _ in range(2):
        with pytest.raises(InputError, match="not empty"):
            RunFolder.create(tmp_path / "a", Subject(Experiment()))
    assert left(tmp_path / "a") == before


def test_impossible_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be a folder"):
        check_free(tmp_path / ("x" * 300))


def test_what_a_kill_left_before_the_run_began_is_no_run(tmp_path: Path) -> None:
    for name in folders.ROWS:
        (tmp_path / f"{name}.jsonl").touch()
    (tmp_path / "experiment.yaml.partial").write_text("half")
    RunFolder.create(tmp_path, Subject(Experiment())).close()
    assert not (tmp_path / "experiment.yaml.partial").exists()


@pytest.mark.parametrize("name", ["history.jsonl", "notes.txt", "summary.json"])
def test_a_folder_that_holds_something_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("something")
    with pytest.raises(InputError, match="not empty"):
        RunFolder.create(tmp_path, Subject(Experiment()))
    assert (tmp_path / name).read_text() == "something"


def test_a_folder_that_is_let_go_of_is_free(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "a", Subject(Experiment())).close()
    for _ in range(2):
        folder, found = RunFolder.reopen(tmp_path / "a", Subject(Experiment()))
        assert found is None
        with pytest.raises(InputError, match="in use"):
            RunFolder.reopen(tmp_path / "a", Subject(Experiment()))
        folder.close()


def test_what_was_half_written_is_removed_when_the_run_is_resumed(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, Subject(Experiment())).close()
    before = left(tmp_path)
    mine = tmp_path / "notes.partial"
    for name in ("run.json", "summary.json", "client_metrics.jsonl", "model.safetensors", "header.safetensors"):
        (tmp_path / f"{name}.partial").write_text("half")
    mine.write_text("mine")
    RunFolder.reopen(tmp_path, Subject(Experiment()))[0].close()
    assert left(tmp_path) == {**before, mine.name: b"mine"}


def test_a_rounds_row_is_written_after_those_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = Evaluation(
        round=1,
        version=1,
        virtual_seconds=1,
        wall_seconds=1,
        metrics={"accuracy": 1},
        loss=1,
        bytes_up=1,
        bytes_down=1,
        updates=1,
    )
    written: list[str] = []
    with RunFolder.create(tmp_path, Subject(Experiment())) as folder:
        monkeypatch.setattr(RowFile, "add", lambda rows, _: written.append(rows.path.stem))
        folder.add(RoundEnd(1, 1.0, 1.0, None, Arrivals(), [], [], {}, evaluation))
    assert written == ["clients", "unfinished", "refused", "rounds", "history"]


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(tmp_path / "a", Subject(Experiment())) as folder:
        folder.save("model", {"w": torch.ones(3)})
        before = left(tmp_path / "a")
        monkeypatch.setattr(os, "fsync", _full)
        for write in (
            lambda: folder.save("model", {"w": torch.zeros(3)}),
            lambda: folder.finish({}),
            lambda: folder.add_client_metrics({}, [], None, False),
        ):
            with pytest.raises(
                FedkeelError, match=r"No space left.*no checkpoint yet; start it again with: fedkeel run --resume"
            ):
                write()
    assert left(tmp_path / "a") == before


def _full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_numbers_that_lie_oddly_in_memory_are_written_down(tmp_path: Path) -> None:
    numbers = torch.arange(6.0, dtype=torch.float64)
    odd = {
        "expanded": numbers[3].expand(1),
        "twice": numbers[3].expand(1, 1),
        "spread": numbers[::5],
        "turned": numbers.view(2, 3).T,
        "repeated": numbers[2].expand(4),
    }
    store = Checkpoints(tmp_path, "", ())
    store.save(1, odd)
    found = store.load()
    assert found is not None
    assert {name: found.state[name].tolist() for name in odd} == {name: each.tolist() for name, each in odd.items()}


# Before anything is trained.


class Untouched:
    """Hands over what a run needs, and fails if anything is trained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def trained(*_: Any) -> None:
            raise AssertionError("training has begun")

        monkeypatch.setattr("fedkeel.api.drive", trained)
        self.given = {"data": federation.data(), "model": federation.net(4)}


@pytest.mark.parametrize("where", ["/proc/fedkeel", "/proc/1/fedkeel", "/dev/null", "/dev/null/a"])
def test_a_place_that_cannot_be_written(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^out: /.* (cannot be|is a file|has room for 0 MB)"):
        run(faulty("fedavg"), where, **Untouched(monkeypatch).given)


def test_a_file_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        for argument in ({"out": place}, {"below": place}):
            with pytest.raises(InputError, match=r"^out: .*file"):
                run(faulty("fedavg"), **argument, **Untouched(monkeypatch).given)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    for argument in ({"out": tmp_path / "a"}, {"below": tmp_path}):
        with pytest.raises(InputError, match="permission denied"):
            run(faulty("fedavg"), **argument, **Untouched(monkeypatch).given)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    for argument in ({"out": tmp_path / "a"}, {"below": tmp_path}):
        with pytest.raises(InputError, match=r"out: .* has room for 0.0001 MB, and this run needs .* MB"):
            run(faulty("fedavg"), **argument, **Untouched(monkeypatch).given)
    assert list(tmp_path.iterdir()) == []
    check_space(tmp_path / "new" / "below", 100)
    with pytest.raises(InputError, match="room"):
        check_space(tmp_path / "new" / "below", 101)


def test_a_disk_that_is_full_when_the_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with largest_file(10), pytest.raises(InputError, match=r"^out: .*a cannot be written \(File too large\)$"):
        run(faulty("fedavg"), tmp_path / "a", **Untouched(monkeypatch).given)
    monkeypatch.undo()
    run(faulty("fedavg"), tmp_path / "a", **given())  # what was left there is in nobody's way


# A disk that fills up in mid-run.


def test_a_disk_without_room_for_the_model(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a", Subject(Experiment())) as folder:
        before = left(tmp_path / "a")
        with largest_file(10), pytest.raises(FedkeelError, match=r"a cannot be written \(.*File too large.*--resume"):
            folder.save("model", {"w": torch.ones(3)})
        assert left(tmp_path / "a") == before


def given() -> dict[str, Any]:
    return {"data": federation.data(), "model": federation.net(4)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "whole"
    run(faulty("fedasync", checkpoint={"rounds": 1}), folder, **given())
    return folder


@contextmanager
def full_after(round: int, size: int) -> Iterator[Any]:
    """(What tells of rounds): from that one on, no file can be larger than that."""
    with largest_file(1 << 30):

        def progress(end: RoundEnd) -> None:
            if end.round == round:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

        yield progress


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 700, 3000])
@pytest.mark.parametrize("round", [1, 3, 4])
def test_a_disk_that_fills_up_is_told_and_does_no_harm(whole: Path, tmp_path: Path, round: int, size: int) -> None:
    folder = tmp_path / "a"
    with full_after(round, size) as progress, pytest.raises(FedkeelError, match="File too large") as error:
        run(faulty("fedasync", checkpoint={"rounds": 1}), folder, progress=progress, **given())
    assert type(error.value) is MishapError
    kept = sorted(path.name for path in folder.glob("checkpoint/round-*"))
    assert kept or round == 1
    again = f"fedkeel.resume({str(folder)!r}, data=..., model=...)"
    told = f"{kept[-1]}; resume with: {again}" if kept else f"start it again with: {again}"
    assert str(error.value).endswith(told)
    assert not list(folder.glob("*.partial"))
    assert not list(folder.glob("checkpoint/.*"))
    _, said = resumed(folder, **given())
    assert len(said) == 1
    assert said[0].endswith(
        f"goes on after {kept[-1].replace('-', ' ')}" if kept else "the run starts again from round 1"
    )
    same(whole, folder)


@pytest.mark.slow
@pytest.mark.parametrize("call", range(0, 30, 3))
def test_a_disk_that_fails_once_at_any_time(
    whole: Path, tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is being written down then: rows, a checkpoint, the model, the summary."""
    folder, calls = tmp_path / "a", 0

    def sometimes(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call + 5:  # the first four are of the experiment and the schema
            _full(file)

    monkeypatch.setattr(os, "fsync", sometimes)
    with pytest.raises(FedkeelError, match="No space left") as error:
        run(faulty("fedasync", checkpoint={"rounds": 2}), folder, **given())
    assert f"fedkeel.resume({str(folder)!r}" in str(error.value)
    resumed(folder, **given())
    for name in folders.ROWS:
        assert [{**row, "wall_seconds": 0} for row in rows(whole, name)] == [
            {**row, "wall_seconds": 0} for row in rows(folder, name)
        ]
    assert (whole / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_disk_that_is_full_while_the_run_is_resumed(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with full_after(3, 10) as progress, pytest.raises(FedkeelError):
        run(faulty("fedasync", checkpoint={"rounds": 1}), folder, progress=progress, **given())
    for _ in range(2):
        with largest_file(10), pytest.raises(FedkeelError, match="File too large"):
            resumed(folder, **given())
    resumed(folder, **given())
    same(whole, folder)
