"""Copies of run folders: whenever copying is broken off, the copy can be resumed, and ends as the run itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fedkeel import api
from fedkeel.config.experiment import Experiment
from fedkeel.record.folder import begun, complete, worked_on
from fedkeel.record.rows import RoundEnd
from fedkeel.runner.sinks import Sink
from fedkeel.study import mirror
from fedkeel.study.mirror import Changes, Checkpoint, Copy, Sent, Source, apply
from tests.helpers.studies import on_top

EXPERIMENT = Experiment.build({}, on_top("rounds=4", "checkpoint.rounds=1"))


class BrokenOffError(BaseException):
    """Somebody pulled the plug."""


class Wire:
    """Takes every piece of a file; the cut comes before a certain one is returned."""

    def __init__(self, cut: int | None = None) -> None:
        self.left = cut

    def put(self, chunk: bytes) -> tuple[bytes]:
        return (chunk,)

    def get(self, part: tuple[bytes]) -> bytes:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise BrokenOffError
        return part[0]


class Copying(Sink):
    """Copies a run's folder after every round, and once more when it is over."""

    def __init__(self, source: Path, copy: Path, wire: Wire) -> None:
        self.source, self.copy, self.wire = Source(source, wire.put), Copy(copy), wire

    def round(self, end: RoundEnd) -> None:
        self.copy.take(self.source.changes(all=False), self.wire.get)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copied(source: Path, copy: Path, wire: Wire) -> None:
    """Make or resume a run, with a copy that is brought up to date all the time."""
    sink = Copying(source, copy, wire)
    try:
        if begun(source):
            sink.source.same()
            api.resume(source, sinks=[sink], tell=lambda _: None)
        else:
            api.run(EXPERIMENT, source, sinks=[sink])
        sink.copy.take(sink.source.changes(), wire.get)
    finally:
        sink.copy.close()


@pytest.fixture
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files travel in small pieces, all of them on the wire."""
    monkeypatch.setattr(mirror, "SMALL", 0)
    monkeypatch.setattr(mirror, "CHUNK", 10_000)


@pytest.mark.usefixtures("_pieces")
def test_a_copy_can_be_resumed_whenever_copying_was_broken_off(tmp_path: Path) -> None:
    copied(tmp_path / "whole", tmp_path / "copy", Wire())
    whole = files(tmp_path / "whole")
    assert files(tmp_path / "copy") == whole
    went_on, cut = set[int](), 0
    while True:
        source, copy, again = (tmp_path / f"{name}{cut}" for name in ("source", "copy", "again"))
        try:
            copied(source, copy, Wire(cut))
            break
        except BrokenOffError:
            pass
        assert not complete(copy) or files(copy).keys() == whole.keys()
        if not complete(copy):
            mirror.apply(Source(copy, Wire().put).changes(), again, Wire().get)  # as to the next machine
            found = (again / "checkpoint").glob("round-*")
            went_on.add(max((int(path.name.removeprefix("round-")) for path in found), default=0))
            copied(again, copy, Wire())
        assert files(copy)["model.safetensors"] == whole["model.safetensors"]
        assert files(copy).keys() == whole.keys()
        for path in (source, copy, again):
            shutil.rmtree(path, ignore_errors=True)
        cut += 7
    assert went_on >= {0, 1, 2, 3}


def test_only_what_is_new_is_sent(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    checkpoint = here / "checkpoint" / "round-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("1")
    for name, text in (("experiment.yaml", "a: 1"), ("rounds.jsonl", "1\n"), ("history.jsonl", ""), ("x/y.txt", "z")):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    (here / "labels.json.partial").write_text("unfinished")
    source = Source(here, lambda chunk: chunk)
    first = source.changes(all=False)
    assert [each.name for each in first.new] == [
        "experiment.yaml", "rounds.jsonl", "history.jsonl", "checkpoint/round-1",
    ]  # fmt: skip
    apply(first, there, bytes)
    assert source.changes(all=False) == Changes()
    with (here / "rounds.jsonl").open("a") as file:
        file.write("2\n")
    assert source.changes(all=False) == Changes((Sent("rounds.jsonl", (b"2\n",), 2),))
    os.rename(checkpoint, checkpoint.with_name("round-2"))
    second = source.changes(all=False)
    assert [type(each) for each in second.new] == [Checkpoint]
    assert second.gone == ("checkpoint/round-1",)
    apply(second, there, bytes)
    (here / "experiment.yaml").unlink()
    last = source.changes()
    assert [each.name for each in last.new] == ["x/y.txt"]
    assert last.gone == ("experiment.yaml",)
    apply(last, there, bytes)
    taken = files(here) | {"rounds.jsonl": b"1\n"}  # what was appended was looked at, and not taken
    assert files(there) == {name: text for name, text in taken.items() if not name.endswith(".partial")}


def test_a_file_of_rows_that_is_another_one_is_sent_whole(tmp_path: Path) -> None:
    rows = tmp_path / "rounds.jsonl"
    rows.write_text("1\n")
    source = Source(tmp_path, lambda chunk: chunk)
    source.changes()
    (tmp_path / "new").write_text("other\n")
    os.rename(tmp_path / "new", rows)
    assert source.changes() == Changes((Sent("rounds.jsonl", (b"other\n",)),))


def test_the_folder_of_a_run_elsewhere_is_worked_on(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    assert not worked_on(tmp_path)
    for text in (b"1\n", b"2\n"):
        copy.take(Changes((Sent("history.jsonl", (text,)),)), bytes)
        assert worked_on(tmp_path)
    copy.close()
    assert not worked_on(tmp_path)
