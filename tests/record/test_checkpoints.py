"""Whatever happens to a process or to its files, the newest complete checkpoint is found, and no other is used."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedkeel
from fedkeel import FedkeelError
from fedkeel.record.checkpoints import STATE, TENSORS, Checkpoints


@dataclass
class Part:
    number: int
    weights: Any


CLASSES = (Part,)


def state(number: int) -> dict[str, Any]:
    weights = torch.full((5,), float(number))
    return {"part": Part(number, weights), "again": weights, "flags": torch.tensor([True, False, True]), "inf": [1e400]}


def number_of(state: dict[str, Any]) -> int:
    """Of a state that is whole."""
    part: Part = state["part"]
    assert part.weights is state["again"]
    assert part.weights.tolist() == [part.number] * 5
    assert state["flags"].tolist() == [True, False, True]
    assert state["inf"] == [float("inf")]
    return part.number


def store(folder: Path, **changes: Any) -> Checkpoints:
    return Checkpoints(folder / "checkpoint", **{"identity": "this run", "classes": CLASSES} | changes)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoint").glob("*"))


def hidden(folder: Path) -> list[str]:
    return [name for name in names(folder) if name.startswith(".")]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert store(tmp_path).load() is None
    assert not (tmp_path / "checkpoint").exists()
    store(tmp_path).clean()
    (tmp_path / "checkpoint").mkdir()
    assert store(tmp_path).load() is None


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert store(tmp_path).newest is None
    path = store(tmp_path).save(3, state(3))
    assert store(tmp_path).newest == path
    assert path == tmp_path / "checkpoint" / "round-3"
    loaded = store(tmp_path).load()
    assert loaded is not None
    assert number_of(loaded.state) == loaded.number == 3
    assert (loaded.path, loaded.passed_over, loaded.notes) == (path, (), ())
    assert sorted(file.name for file in path.iterdir()) == [STATE, TENSORS]


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    mine = store(tmp_path)
    for number in (0, 2, 9, 10, 100):
        mine.save(number, state(number))
    assert names(tmp_path) == ["round-10", "round-100"]
    loaded = store(tmp_path).load()
    assert loaded is not None
    assert loaded.number == 100
    store(tmp_path, keep=0).save(101, state(101))  # at least what was just written
    assert names(tmp_path) == ["round-101"]


def test_what_is_newer_is_left_alone(tmp_path: Path) -> None:
    for number in (8, 9, 1, 2, 3):
        store(tmp_path).save(number, state(number))
    assert names(tmp_path) == ["round-2", "round-3", "round-8", "round-9"]


def test_other_things_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    mine = store(tmp_path, keep=1)
    mine.save(1, state(1))
    others = [".nfs0001", "round-", "round-01", "round-x", "notes.txt", ".round-1"]
    for name in others:
        (mine.folder / name).write_text("")
    mine.save(2, state(2))
    assert names(tmp_path) == sorted([*others, "round-2"])


def test_the_files_are_what_they_are_called(tmp_path: Path) -> None:
    path = store(tmp_path).save(1, {**state(1), "table": np.zeros((2, 3)), "half": [torch.ones(2).bfloat16()] * 2})
    tensors = load_file(path / TENSORS)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} == {
        "float64[2,3]": (torch.float64, (1, 2, 3)),
        "float32[5]": (torch.float32, (1, 5)),
        "bfloat16[2]": (torch.bfloat16, (1, 2)),
        "bool[3]": (torch.bool, (1, 3)),
    }
    raw = (path / TENSORS).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    header.pop("__metadata__")
    assert [told["data_offsets"] for told in header.values()] == [[0, 48], [48, 68], [68, 72], [72, 75]]  # aligned
    told = json.loads((path / STATE).read_text(encoding="utf-8"))
    told.pop("state")
    assert told == {
        "sha256": told["sha256"],
        "format": 5,
        "number": 1,
        "identity": "this run",
        "fedkeel": fedkeel.__version__,
        "torch": torch.__version__,
        "tensors": {
            "bytes": (path / TENSORS).stat().st_size,
            "sha256": sha256((path / TENSORS).read_bytes()).hexdigest(),
        },
    }


def test_a_state_without_tensors_is_a_state(tmp_path: Path) -> None:
    store(tmp_path).save(1, [])
    loaded = store(tmp_path).load()
    assert loaded is not None
    assert loaded.state == []


# Damage


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with two checkpoints."""
    for number in (1, 2):
        store(tmp_path).save(number, state(number))
    return tmp_path


def passed_over(folder: Path, **changes: Any) -> str:
    """What is said of the newer one, when the older one is used."""
    loaded = store(folder, **changes).load()
    assert loaded is not None
    assert number_of(loaded.state) == loaded.number == 1
    (sentence,) = loaded.passed_over
    start = f"checkpoint {folder / 'checkpoint' / 'round-2'} cannot be used: "
    assert sentence.startswith(start)
    return sentence.removeprefix(start)


def places(whole: bytes) -> list[int]:
    """All in the checksum or the header's length and behind, then every fifth, and the last."""
    return [*range(100), *range(100, len(whole), 5), len(whole) - 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_a_flipped_bit_anywhere_is_noticed(two: Path, name: str) -> None:
    file = two / "checkpoint" / "round-2" / name
    whole = file.read_bytes()
    for at in places(whole):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert passed_over(two) == f"{name} is damaged (its checksum differs)"
    file.write_bytes(whole)
    loaded = store(two).load()
    assert loaded is not None
    assert number_of(loaded.state) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_a_missing_or_additional_end_is_noticed(two: Path, name: str) -> None:
    file = two / "checkpoint" / "round-2" / name
    whole = file.read_bytes()
    for length in places(whole):
        file.write_bytes(whole[:length])
        assert f"{name} is damaged" in passed_over(two)
    for more in (b"\0", b" ", b"\n", whole):
        file.write_bytes(whole + more)
        assert f"{name} is damaged" in passed_over(two)


@pytest.mark.parametrize("name", [STATE, TENSORS])
@pytest.mark.parametrize("garbage", [b"", b"{}", b"[1]", b"\0" * 1000, b"\xff" * 1000, b"{" * 1_000_000])
def test_garbage_is_noticed(two: Path, name: str, garbage: bytes) -> None:
    (two / "checkpoint" / "round-2" / name).write_bytes(garbage)
    assert f"{name} is damaged" in passed_over(two)


def test_exchanged_files_are_noticed(two: Path) -> None:
    one, other = (two / "checkpoint" / f"round-{number}" / TENSORS for number in (1, 2))
    other.write_bytes(one.read_bytes())
    assert passed_over(two) == f"{TENSORS} is damaged (its checksum differs)"


@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_a_missing_file_is_noticed(two: Path, name: str) -> None:
    (two / "checkpoint" / "round-2" / name).unlink()
    assert passed_over(two) == f"{name} is missing"
    (two / "checkpoint" / "round-2" / name).mkdir()
    assert passed_over(two) == "it cannot be read (Is a directory)"


def test_a_file_in_its_place_is_noticed_and_replaced(two: Path) -> None:
    path = two / "checkpoint" / "round-2"
    path.rename(two / "elsewhere")
    path.write_text("")
    assert passed_over(two) == "it cannot be read (Not a directory)"
    store(two).save(2, state(2))
    assert names(two) == ["round-1", "round-2"]
    path.rename(two / "there")
    path.symlink_to(two / "there")
    store(two).save(2, state(2))
    assert (two / "there" / STATE).exists()  # what a link points to is not ours
    path.rename(two / "somewhere")
    path.symlink_to(two / "nowhere")
    store(two).save(2, state(2))
    assert not path.is_symlink()
    assert names(two) == ["round-1", "round-2"]


def test_what_cannot_be_read_is_noticed(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path.parent.name == "round-2":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert passed_over(two) == "it cannot be read (Input/output error)"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what stands in the newer one, with a checksum that fits."""
    told = json.loads((folder / "checkpoint" / "round-2" / STATE).read_text(encoding="utf-8"))
    told.pop("sha256")
    change(told)
    write_state(folder, json.dumps(told)[1:])


def write_state(folder: Path, text: str) -> None:
    digest = sha256(text.encode()).hexdigest()
    (folder / "checkpoint" / "round-2" / STATE).write_text(f'{{"sha256": "{digest}",\n{text}', encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told: told.update(format=6), "a later version of fedkeel (its format is 6, not 5)"),
        (lambda told: told.update(format=1), "an earlier version of fedkeel (its format is 1, not 5)"),
        (lambda told: told.pop("format"), "an earlier version of fedkeel (its format is None, not 5)"),
        (lambda told: told.update(identity="other"), "it belongs to another model, other data or other devices"),
        (lambda told: told.update(number=1), "it is of round 1, not 2"),
        (lambda told: told["state"].update(value={"$set": []}), "$set stands for nothing known"),
        (lambda told: told["state"].update(value={"$tensor": ["x", 0]}), "its contents make no sense (KeyError: 'x')"),
        (lambda told: told["state"].update(value={"$same": 7}), "its contents make no sense (KeyError: 7)"),
        (lambda told: told.pop("state"), "its contents make no sense (KeyError: 'state')"),
        (lambda told: told.pop("tensors"), "its contents make no sense (KeyError: 'tensors')"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_passed_over(two: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    rewrite(two, change)
    assert passed_over(two).removeprefix("it was written by ") == message


def test_endless_nesting_is_passed_over(two: Path) -> None:
    write_state(two, '"format": 5, "state": ' + "[" * 100_000)
    assert "its contents make no sense (RecursionError" in passed_over(two)


def test_an_unknown_class_is_told(tmp_path: Path) -> None:
    store(tmp_path).save(1, {"part": 1})
    store(tmp_path).save(2, state(2))
    loaded = store(tmp_path, classes=()).load()
    assert loaded is not None
    assert loaded.number == 1
    assert "which is unknown here" in loaded.passed_over[0]


def test_an_objection_is_told(two: Path) -> None:
    loaded = store(two).load(lambda state: "it is too new" if number_of(state) == 2 else None)
    assert loaded is not None
    assert loaded.number == 1
    assert loaded.passed_over == (f"checkpoint {two / 'checkpoint' / 'round-2'} cannot be used: it is too new",)


def test_all_that_is_wrong_is_told(two: Path) -> None:
    (two / "checkpoint" / "round-1" / TENSORS).write_bytes(b"")
    (two / "checkpoint" / "round-2" / STATE).unlink()
    with pytest.raises(FedkeelError) as caught:
        store(two).load()
    path = two / "checkpoint"
    size = (path / "round-2" / TENSORS).stat().st_size
    assert str(caught.value) == (
        f"there is no usable checkpoint: checkpoint {path}/round-2 cannot be used: {STATE} is missing; "
        f"checkpoint {path}/round-1 cannot be used: {TENSORS} is damaged (it has 0 bytes instead of {size})"
    )
    with pytest.raises(FedkeelError, match="it belongs to another model, other data or other devices"):
        store(two, identity="another").load()


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(FedkeelError, match=r"cannot be read \(Not a directory\)"):
        store(tmp_path).load()
    with pytest.raises(FedkeelError, match=r"round-1 could not be written \(.*\); there is none yet"):
        store(tmp_path).save(1, state(1))


def test_another_version_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "1.0")
        patch.setattr(fedkeel, "__version__", "0.0.1")
        path = store(tmp_path).save(1, state(1))
    loaded = store(tmp_path).load()
    assert loaded is not None
    assert loaded.passed_over == ()
    assert loaded.notes == (
        f"checkpoint {path} was written by fedkeel 0.0.1; this is fedkeel {fedkeel.__version__}",
        f"checkpoint {path} was written by torch 1.0; this is torch {torch.__version__}",
    )


def test_what_was_passed_over_goes_with_the_next(tmp_path: Path) -> None:
    for number in (1, 2, 8, 9):
        store(tmp_path, keep=9).save(number, state(number))
    for number in (8, 9):
        (tmp_path / "checkpoint" / f"round-{number}" / STATE).write_bytes(b"")
    mine = store(tmp_path)
    loaded = mine.load()
    assert loaded is not None
    assert loaded.number == 2
    mine.save(3, state(3))
    assert names(tmp_path) == ["round-2", "round-3"]  # two that can be used, however new the others were


# Errors while writing


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("big", [{"tensor": torch.zeros(3_000_000)}, {"text": "x" * 3_000_000}])
def test_a_disk_that_is_full_damages_nothing(tmp_path: Path, big: Any) -> None:
    path = tmp_path / "checkpoint"
    with largest_file(2_000_000), pytest.raises(FedkeelError) as caught:
        store(tmp_path).save(1, big)
    assert str(caught.value) == f"checkpoint {path}/round-1 could not be written (File too large); there is none yet"
    assert names(tmp_path) == []
    store(tmp_path).save(1, state(1))
    with largest_file(2_000_000), pytest.raises(FedkeelError) as caught:
        store(tmp_path).save(2, big)
    assert str(caught.value).endswith("round-2 could not be written (File too large); the last one is round-1")
    with largest_file(2_000_000), pytest.raises(FedkeelError, match="the last one is round-1"):
        store(tmp_path).save(1, big)
    assert names(tmp_path) == ["round-1"]
    loaded = store(tmp_path).load()
    assert loaded is not None
    assert number_of(loaded.state) == 1


def test_what_cannot_be_written_changes_nothing(two: Path) -> None:
    with pytest.raises(FedkeelError, match="part: a generator"):
        store(two).save(3, {"part": (i for i in ())})
    assert names(two) == ["round-1", "round-2"]


CALLS = ((io, "open"), *((os, name) for name in ("open", "mkdir", "fsync", "rename", "unlink", "rmdir")))
"""Whatever `save` asks of the operating system that changes something."""


@contextmanager
def interrupted(at: int, error: BaseException) -> Iterator[list[str]]:
    """The call with this number, from 0, fails before it does anything; the calls made so far."""
    made: list[str] = []

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            made.append(name)
            if len(made) == at + 1:
                raise error
            return real(*args, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, wrap(name, getattr(module, name)))
        yield made


class Killed(BaseException):
    """As if the process had ended there: nothing of ours must catch this."""


def first(folder: Path) -> Checkpoints:
    return store(folder)


def next_one(folder: Path) -> Checkpoints:
    store(folder, keep=1).save(1, state(1))
    return store(folder, keep=1)


def same_number(folder: Path) -> Checkpoints:
    store(folder).save(2, state(1))
    return store(folder)


def after_damage(folder: Path) -> Checkpoints:
    for number in (1, 2, 3):
        store(folder, keep=9).save(number, state(number))
    for number in (2, 3):
        (folder / "checkpoint" / f"round-{number}" / TENSORS).write_bytes(b"")
    mine = store(folder)
    assert mine.load()
    return mine


Situation = Callable[[Path], Checkpoints]
SITUATIONS: dict[Situation, str] = {
    first: "there is none yet",
    next_one: "the last one is round-1",
    same_number: "the last one is round-2",
    after_damage: "the last one is round-1",
}
"""And what is said to be there if the next one cannot be written."""


def found(folder: Path) -> int | None:
    """Which state is found afterwards."""
    loaded = store(folder).load()
    return None if loaded is None else number_of(loaded.state)


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_kill_at_any_step_loses_nothing(tmp_path: Path, situation: Situation) -> None:
    old = None if situation is first else 1
    seen = []
    for at in count():
        folder = tmp_path / str(at)
        folder.mkdir()
        ended = save_killed(situation(folder), 2, at)
        seen.append(found(folder))
        if situation is not after_damage:
            assert all(len(list(path.iterdir())) == 2 for path in folder.glob("checkpoint/round-*"))
        go_on(folder)
        if ended:
            break
    after = seen.index(2)  # from there on, it is always the new one
    assert after > 0
    assert seen == [old] * after + [2] * (len(seen) - after)


@pytest.mark.slow
@pytest.mark.parametrize("situation", [first, next_one, same_number])
def test_a_second_kill_loses_nothing(tmp_path: Path, situation: Situation) -> None:
    """At any step of the next attempt, which begins by tidying up behind the first one."""
    with interrupted(10_000, Killed()) as made:
        situation(tmp_path).save(2, state(2))
    for at in (step for step, name in enumerate(made) if name in ("rename", "rmdir")):
        for again in count():
            folder = tmp_path / f"{at}-{again}"
            folder.mkdir()
            save_killed(situation(folder), 2, at)
            before = found(folder)
            resumed = store(folder)
            resumed.load()
            ended = save_killed(resumed, 2, again)
            assert found(folder) in (before, 2)
            go_on(folder)
            if ended:
                break


def save_killed(mine: Checkpoints, number: int, at: int) -> bool:
    """Save, killed at this call; whether it came to an end before."""
    try:
        with interrupted(at, Killed()):
            mine.save(number, state(number))
    except Killed:
        return False
    return True


def go_on(folder: Path, number: int = 5) -> None:
    """What is found stays the same when the folder is tidied up, and nothing is left behind in the end."""
    before = found(folder)
    resumed = store(folder, keep=1)
    resumed.clean()
    assert found(folder) == before
    assert not hidden(folder)
    resumed.load()
    resumed.save(number, state(number))
    assert names(folder) == [f"round-{number}"]


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_an_error_at_any_step_loses_nothing(tmp_path: Path, situation: Situation, code: int) -> None:
    old = None if situation is first else 1
    for at in count():
        folder = tmp_path / str(at)
        folder.mkdir()
        mine, told = situation(folder), ""
        with interrupted(at, OSError(code, os.strerror(code))) as made:
            try:
                mine.save(2, state(2))
            except FedkeelError as error:
                told = str(error)
        if told:
            assert told.endswith(f"round-2 could not be written ({os.strerror(code)}); {SITUATIONS[situation]}")
            assert found(folder) in (old, 2)  # the last thing that may fail is to make sure that it is on the disk
            assert not hidden(folder)
        else:
            assert found(folder) == 2
        go_on(folder)
        if at >= len(made):
            break


@pytest.mark.slow
def test_a_process_that_is_really_killed_loses_nothing(tmp_path: Path) -> None:
    least = 0
    for _ in range(5):
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            try:
                for number in count(least):
                    store(tmp_path).save(number, state(number))
                    os.write(writing, b".")
            finally:
                os._exit(1)
        os.close(writing)
        done = sum(len(os.read(reading, 1)) for _ in range(4))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reading)
        number = found(tmp_path)
        assert done == 4
        assert number is not None
        assert number >= least + 3
        least = number + 1
    go_on(tmp_path, least)
