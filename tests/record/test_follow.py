"""Following a run: every row once and in order, whatever happens to the run meanwhile."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel
from fedkeel import Experiment, InputError, run
from fedkeel.record import follow as module
from fedkeel.record.folder import ROWS, RunFolder
from fedkeel.record.rowfile import Position, RowFile
from fedkeel.record.rows import KINDS, Arrival, Arrivals, Evaluation, Refused, Round, RoundEnd, Row, Unfinished
from fedkeel.record.subject import Subject
from fedkeel.runner.sinks import Sink, Start
from tests.helpers import federation
from tests.helpers.folders import faulty

FAULTS = {"lost_upload": 0.2, "corrupt": 0.2, "twice": 0.2}


def timeless(row: Row) -> Row:
    return replace(row, wall_seconds=0.0) if isinstance(row, Evaluation) else row


def in_files(folder: Path, kind: str) -> list[Row]:
    """What stands in a file in the end."""
    text = (folder / f"{kind}.jsonl").read_text()
    return [timeless(KINDS[kind].read(json.loads(line))) for line in text.splitlines()]


def told(ends: list[RoundEnd]) -> list[Row]:
    """The rows of rounds in the order in which they are followed."""
    found: list[Row] = []
    for end in ends:
        found += [*end.arrivals, *end.unfinished, *end.refused, end.row, *([end.evaluation] if end.evaluation else [])]
    return found


class Live(Sink):
    """Follows the run that it is a sink of."""

    def __init__(self) -> None:
        self.ends: list[RoundEnd] = []
        self.found: list[Row] = []

    def begin(self, start: Start) -> None:
        assert start.folder is not None
        self.rows = fedkeel.follow(start.folder, timeout=60)

    def round(self, end: RoundEnd) -> None:
        self.ends.append(end)
        count = len(told([end]))
        self.found += [next(self.rows) for _ in range(count)]  # everything is there before a sink is told


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Live]:
    live, folder = Live(), tmp_path_factory.mktemp("finished") / "a"
    described = faulty("fedasync", rounds=8, faults=FAULTS, fleet={"speed_ratio": 5}, evaluate_every=3)
    run(described, folder, data=federation.data(), model=federation.net(4), sinks=[live])
    return folder, live


def test_rows_come_as_soon_as_a_round_is_over(finished: tuple[Path, Live]) -> None:
    folder, live = finished
    assert live.found == told(live.ends)
    rest = [*live.rows]
    for kind in ("unfinished", "refused"):
        found = [row for row in live.found + rest if isinstance(row, KINDS[kind])]
        assert found == in_files(folder, kind)
    assert {type(row) for row in live.found + rest} == {Evaluation, Round, Arrival, Unfinished, Refused}


def test_a_complete_run_is_followed_at_once(finished: tuple[Path, Live], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, live = finished
    monkeypatch.setattr(module._Waiting, "sleep", lambda *_: pytest.fail("it waits"))
    found = [*fedkeel.follow(folder)]
    assert found[: len(live.found)] == live.found
    for kind in KINDS:
        only = [*fedkeel.follow(folder, kinds=(kind,))]
        assert only == [*fedkeel.follow(folder, kind)] == [row for row in found if isinstance(row, KINDS[kind])]
        assert [timeless(row) for row in only] == in_files(folder, kind)
    two = [*fedkeel.follow(folder, kinds=["rounds", "history"])]
    assert two == [row for row in found if isinstance(row, Round | Evaluation)]


def test_what_is_not_accepted(finished: tuple[Path, Live], tmp_path: Path) -> None:
    folder, _ = finished
    with pytest.raises(InputError, match=r"kinds: 'histroy' is not known; did you mean history\?"):
        fedkeel.follow(folder, kinds=("histroy",))
    for wrong in ({"timeout": 0}, {"timeout": -1}, {"poll_seconds": 0}, {"timeout": float("nan")}, {"timeout": "1"}):
        with pytest.raises(InputError, match="must be a number of seconds"):
            fedkeel.follow(folder, **wrong)  # type: ignore[arg-type]
    for path in (tmp_path, tmp_path / "nothing", folder / "history.jsonl"):
        with pytest.raises(InputError, match=r"follow: .* holds no run; name a folder .*, or give a timeout to wait"):
            fedkeel.follow(path)
    with pytest.raises(InputError, match=r"follow: .* holds no run; name a folder that fedkeel run has made$"):
        fedkeel.follow(folder / "history.jsonl", timeout=1)  # it will never be a folder


# A writer whose every step can fall between any two looks of the follower.


class Writer:
    """Writes the rows of a finished run as a run does; is killed, fails and is resumed when it is told to."""

    def __init__(self, folder: Path, template: list[dict[str, list[str]]], rest: dict[str, list[str]]) -> None:
        self.folder, self._template, self._rest = folder, template, rest
        (folder / "experiment.yaml").touch()
        self._files = {name: (folder / f"{name}.jsonl").open("ab", buffering=0) for name in ROWS}
        self._saved = [dict.fromkeys(ROWS, 0)]
        """Positions after each round that was written."""
        self._attempt = 0
        self._queue: list[tuple[str, bytes | int | None]] = []
        """What comes next: a file and what is written, or where it is cut off; or one that is replaced."""
        self._replace("run.json")
        self.alive, self.complete = True, False

    def step(self) -> None:
        """One write, or one file that is cut off."""
        if self.complete or not self.alive:
            return
        self._queue = self._queue or self._next()
        name, what = self._queue.pop(0)
        if what is None:
            self._replace(name)
            self.complete = name == "summary.json"
        elif isinstance(what, int):
            self._files[name].truncate(what)
        else:
            self._files[name].write(what)
            if name == "history":
                self._saved.append({name: os.fstat(file.fileno()).st_size for name, file in self._files.items()})

    def _next(self) -> list[tuple[str, bytes | int | None]]:
        """A round, or the end."""
        done = len(self._saved) - 1
        if done == len(self._template):
            return [*((name, "".join(lines).encode()) for name, lines in self._rest.items()), ("summary.json", None)]
        names = ("clients", "unfinished", "refused", "rounds", "history")
        return [(name, self._text(self._template[done][name])) for name in names]

    def _text(self, lines: list[str]) -> bytes:
        """Real times differ from one attempt to the next, and so does the length of a row."""
        seconds = f'"wall_seconds": {10**self._attempt + 0.5}'
        return "".join(lines).replace('"wall_seconds": 0', seconds).encode()

    def _replace(self, name: str) -> None:
        """By a new file; two resumptions of a real run are never at the same time."""
        partial = self.folder / f"{name}.partial"
        partial.write_text('{"schema": 2}')
        os.utime(partial, (self._attempt, self._attempt))
        partial.replace(self.folder / name)

    def kill(self, share: float) -> None:
        """In the middle of a write, or between two files that are cut off."""
        if not self.complete and self.alive:
            name, text = self._queue[0] if self._queue else ("", None)
            if isinstance(text, bytes):
                self._files[name].write(text[: int(len(text) * share)])
            self.alive = False

    def fail(self) -> None:
        """The jobs that are left are written down."""
        if not self.complete and self.alive and not self._queue:
            row = replace(LEFT, ended=float(self._attempt))
            self._files["unfinished"].write((json.dumps(row.plain()) + "\n").encode() * 2)
            self.alive = False

    def resume(self, back: int) -> None:
        """From a checkpoint so many rounds ago."""
        if self.complete or self.alive:
            return
        self._saved = self._saved[: max(1, len(self._saved) - back)]
        names = ("rounds", *(name for name in ROWS if name != "rounds"))
        self._queue = [*((name, self._saved[-1][name]) for name in names), ("run.json", None)]
        self._attempt += 1
        self.alive = True

    def resume_at_once(self, back: int) -> None:
        """The same, and all files are cut off."""
        self.resume(back)
        while self._queue:
            self.step()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


LEFT = Unfinished(5, 1, 0, 0.0, 0.0, 0.0, "in flight", 1, 1)


def template(folder: Path) -> tuple[list[dict[str, list[str]]], dict[str, list[str]]]:
    """(The lines of each round, those after the last one) of a finished run."""
    lines = {name: (folder / f"{name}.jsonl").read_text().splitlines(keepends=True) for name in ROWS}
    lines["history"] = [json.dumps({**json.loads(line), "wall_seconds": 0}) + "\n" for line in lines["history"]]
    found = []
    for line in lines["rounds"]:
        row = json.loads(line)
        of = {"clients": row["arrived"], "unfinished": row["lost"], "refused": row["refused"]}
        taken = {name: [lines[name].pop(0) for _ in range(count)] for name, count in of.items()}
        tested = lines["history"] and json.loads(lines["history"][0])["round"] == row["round"]
        found.append({**taken, "rounds": [line], "history": [lines["history"].pop(0)] if tested else []})
    return found, {name: lines[name] for name in ("unfinished", "refused")}


STEPS = st.sampled_from([("step",), ("round",)])
EVENTS = st.one_of(
    STEPS,
    st.tuples(st.just("kill"), st.floats(0, 1)),
    st.just(("fail",)),
    st.tuples(st.just("resume"), st.integers(0, 8)),
    st.tuples(st.just("again"), st.integers(0, 8)),
)
ACTIONS = st.one_of(st.just([]), st.lists(STEPS, max_size=3), st.lists(EVENTS, max_size=4))


CHOSEN = st.sampled_from([tuple(KINDS), ("history",), ("unfinished",)])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(ACTIONS, min_size=60, max_size=150), CHOSEN)
def test_every_row_comes_once_whatever_happens(finished: Any, script: list[list[Any]], kinds: tuple[str, ...]) -> None:
    """Kills, failures and resumptions fall between any two of the follower's looks at a file."""
    folder, _ = finished
    expected = [timeless(row) for row in fedkeel.follow(folder, kinds)]
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        writer = Writer(Path(place), *template(folder))
        coming, acted = iter(script), 0

        def act() -> None:
            nonlocal acted
            acted += 1
            assert acted < 5000, "it waits forever"
            for name, *how in next(coming, [("resume", 1), ("step",)]):
                if name == "round":
                    for _ in range(5):
                        writer.step()
                elif name == "again":
                    writer.kill(0.5)
                    writer.resume(*how)
                else:
                    getattr(writer, name)(*how)

        def opened(path: Path) -> Any:
            act()
            return path.open("rb")

        patch.setattr(module, "open_file", opened)
        patch.setattr(module._Waiting, "sleep", lambda *_: act())
        found = [timeless(row) for row in fedkeel.follow(place, kinds)]
        writer.close()
    assert writer.complete
    assert found == expected


def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], Any]) -> Iterator[Row]:
    """Follow a folder in which something happens whenever the follower waits."""
    coming = iter(actions)
    monkeypatch.setattr(module._Waiting, "sleep", lambda *_: next(coming)())
    return fedkeel.follow(folder)


def by_hand(lost: list[int]) -> list[dict[str, list[str]]]:
    """Rounds in which so many jobs are lost, each with an evaluation."""
    found = []
    for number, count in enumerate(lost, 1):
        evaluation = Evaluation(
            round=number, version=1, virtual_seconds=1, wall_seconds=0, metrics={"accuracy": 1}, loss=1, bytes_up=1,
            bytes_down=1, updates=1,
        )  # fmt: skip
        rows = [
            Round(number, None, 0, count, 0, {}),
            evaluation,
            *[replace(LEFT, round=number, why="dropped out")] * count,
        ]
        round, history, *unfinished = [json.dumps(row.plain()) + "\n" for row in rows]
        found.append({"clients": [], "unfinished": unfinished, "refused": [], "rounds": [round], "history": [history]})
    return found


def test_a_file_that_has_grown_past_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off and written again between two looks, with rows of another length."""
    writer = Writer(tmp_path, by_hand([0] * 9), {})

    def write(rounds: int) -> None:
        for _ in range(5 * rounds):
            writer.step()

    def again() -> None:
        writer.kill(0)
        writer.resume_at_once(4)
        write(9)

    rows = scripted(tmp_path, monkeypatch, lambda: write(6), again, writer.step)
    found = [(type(row), row.round) for row in rows]
    assert found == [(kind, round) for round in range(1, 10) for kind in (Round, Evaluation)]
    writer.close()


def test_a_run_that_is_resumed_and_fails_while_a_round_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round's row is there when it is looked for; where its lost job was, another is left in flight."""
    writer = Writer(tmp_path, by_hand([0, 1, 0]), {})
    for _ in range(10):
        writer.step()
    looks = 0

    def opened(path: Path) -> Any:
        nonlocal looks
        looks += path.name == "unfinished.jsonl"
        if looks == 1 and writer.alive:
            writer.kill(0)
            writer.resume_at_once(1)
            writer.fail()
        return path.open("rb")

    def later() -> None:
        writer.resume_at_once(0)
        for _ in range(11):
            writer.step()

    monkeypatch.setattr(module, "open_file", opened)
    found = [*scripted(tmp_path, monkeypatch, later)]
    assert looks > 1
    assert [row.why for row in found if isinstance(row, Unfinished)] == ["dropped out"]
    assert [row.round for row in found if isinstance(row, Round)] == [1, 2, 3]
    writer.close()


# A folder as it is really written, cut off and written again.

IN_ORDER = [(kind, round) for round in (1, 2, 3) for kind in (Round, Evaluation)]


def three_rounds(folder: RunFolder) -> None:
    for number in (1, 2, 3):
        evaluation = Evaluation(
            round=number, version=1, virtual_seconds=1, wall_seconds=1, metrics={"accuracy": 1}, loss=1, bytes_up=1,
            bytes_down=1, updates=1,
        )  # fmt: skip
        folder.add(RoundEnd(number, 1.0, 1.0, None, Arrivals(), [], [], {}, evaluation))


def resumed(path: Path) -> RunFolder:
    """There is no checkpoint: all rows are cut off."""
    return RunFolder.reopen(path, Subject(Experiment()))[0]


def written_again(path: Path) -> None:
    with resumed(path) as folder:
        three_rounds(folder)
        folder.finish({})


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("cut", range(len(ROWS)))
def test_rows_come_in_order_however_many_files_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, before: bool
) -> None:
    """So many files are cut off and the others are not, before round 2 is looked for, or when its row was read."""

    class KilledError(Exception):
        pass

    def cut_off(rows: RowFile, position: Position) -> None:
        cuts.append(rows.path.name)
        if len(cuts) > cut:
            raise KilledError
        real(rows, position)

    with RunFolder.create(tmp_path, Subject(Experiment())) as folder:
        three_rounds(folder)
    rows, cuts, real = fedkeel.follow(tmp_path), list[str](), RowFile.rewind
    found = [next(rows)]

    def killed() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(RowFile, "rewind", cut_off)
            with pytest.raises(KilledError):
                resumed(tmp_path)

    def opened(path: Path) -> Any:
        if path.name == "history.jsonl" and not cuts:
            killed()
        return path.open("rb")

    if before:
        killed()
    monkeypatch.setattr(module, "open_file", opened)
    monkeypatch.setattr(module._Waiting, "sleep", lambda *_: written_again(tmp_path))
    found += rows
    assert len(cuts) == cut + 1
    assert [(type(row), row.round) for row in found] == IN_ORDER


def test_rows_come_in_order_if_they_are_all_cut_off_and_written_again_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of round 2 is there before and after the other files are read, but not all the time."""
    with RunFolder.create(tmp_path, Subject(Experiment())) as folder:
        three_rounds(folder)
    rows = fedkeel.follow(tmp_path)
    found, again = [next(rows)], list[RunFolder]()

    def opened(path: Path) -> Any:
        if path.name == "history.jsonl" and not again:
            again.append(resumed(tmp_path))
        elif path.name == "rounds.jsonl" and again and not path.stat().st_size:
            with again[0] as folder:
                three_rounds(folder)
                folder.finish({})
        return path.open("rb")

    monkeypatch.setattr(module, "open_file", opened)
    monkeypatch.setattr(module._Waiting, "sleep", lambda *_: None)
    found += rows
    assert again
    assert [(type(row), row.round) for row in found] == IN_ORDER


def test_half_a_line_is_no_row(finished: tuple[Path, Live], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, _ = template(finished[0])
    writer = Writer(tmp_path, rounds[:1], {})
    history = tmp_path / "history.jsonl"
    line = (
        b'{"round": 1, "version": 1, "virtual_seconds": 1, "wall_seconds": 1, "accuracy": 1, "loss": 1, "bytes_up": 1'
    )
    ending = b', "bytes_down": 1, "updates": 1}'
    rows = scripted(
        tmp_path,
        monkeypatch,
        *[writer.step] * 5,
        lambda: history.write_bytes(line),
        lambda: history.write_bytes(line + ending),  # it could be read, and yet it may not be all
        lambda: history.write_bytes(line + ending.replace(b"1}", b"123}\n")),
        lambda: (tmp_path / "summary.json").touch(),
    )
    assert [row.updates for row in rows if isinstance(row, Evaluation)] == [123]
    writer.close()


def test_a_row_that_is_damaged_is_told(finished: tuple[Path, Live], tmp_path: Path) -> None:
    rounds, rest = template(finished[0])
    for text, said in (
        (b"{]\n", r"history.jsonl is damaged \(line 1: it is no row\)"),
        (b'{"round": "one"}\n', r"history.jsonl is damaged \(line 1: round is a str\)"),
        (b'{"round": 1}\n', r"history.jsonl is damaged \(line 1: version is missing\)"),
        (b"[" * 100_000 + b"\n", r"history.jsonl is damaged \(line 1: it is no row\)"),
    ):
        folder = tmp_path / str(len(text))
        folder.mkdir()
        writer = Writer(folder, rounds, rest)
        while not writer.complete:
            writer.step()
        writer.close()
        (folder / "history.jsonl").write_bytes(text)
        with pytest.raises(
            InputError, match=rf"^run folder {folder}: {said}; use a copy of the folder, or run the experiment again$"
        ):
            [*fedkeel.follow(folder)]
        (folder / "summary.json").unlink()  # also while the run goes on
        with pytest.raises(InputError, match=said):
            [*fedkeel.follow(folder, poll_seconds=1e-3, timeout=60)]


class Unreadable(BytesIO):
    """A file on a disk that fails."""

    def read(self, _: object = None) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    __next__ = read


@pytest.mark.parametrize("opens", [True, False])
def test_a_fault_that_passes_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool) -> None:
    """The same one may come again later, but not twice in a row."""
    writer, faulty = Writer(tmp_path, by_hand([0] * 3), {}), True

    def opened(path: Path) -> Any:
        if faulty and path.name == "rounds.jsonl":
            return Unreadable() if opens else Unreadable().read()
        return path.open("rb")

    def mended() -> None:
        nonlocal faulty
        faulty = False

    def faulty_again() -> None:
        nonlocal faulty
        faulty = True
        for _ in range(5):
            writer.step()

    def completed() -> None:
        writer.step()
        assert writer.complete

    monkeypatch.setattr(module, "open_file", opened)
    rows = scripted(tmp_path, monkeypatch, *[mended, faulty_again] * 3, mended, completed)
    assert [(type(row), row.round) for row in rows] == IN_ORDER
    (tmp_path / "summary.json").unlink()
    faulty = True
    rows = scripted(tmp_path, monkeypatch, lambda: None)
    with pytest.raises(
        InputError, match=r"^run folder .*: rounds.jsonl cannot be read \(Input/output error\); use a copy"
    ):
        next(rows)
    writer.close()


def test_a_line_that_is_completed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read next after half a line is no line, even if it looks like one."""

    class Growing(BytesIO):
        def __next__(self) -> bytes:
            if not parts:
                raise StopIteration
            return parts.pop(0)

    writer = Writer(tmp_path, by_hand([1]), {})
    parts = [b'{"half', (json.dumps(LEFT.plain()) + "\n").encode()]
    for _ in range(5):
        writer.step()

    def opened(path: Path) -> Any:
        return Growing() if parts and path.name == "unfinished.jsonl" else path.open("rb")

    monkeypatch.setattr(module, "open_file", opened)
    rows = scripted(tmp_path, monkeypatch, parts.clear, (tmp_path / "summary.json").touch)
    assert [row.why for row in rows if isinstance(row, Unfinished)] == ["dropped out"]
    writer.close()


def test_rows_that_are_missing_in_a_complete_run_are_told(finished: tuple[Path, Live], tmp_path: Path) -> None:
    writer = Writer(tmp_path, *template(finished[0]))
    while not writer.complete:
        writer.step()
    writer.close()
    clients = tmp_path / "clients.jsonl"
    clients.write_bytes(b"".join(clients.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match=r"clients.jsonl is damaged \(rows of round 8 are missing\)"):
        [*fedkeel.follow(tmp_path)]


# Waiting.


class Clock:
    """The time for a follower; what was agreed on happens when it comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **happens: Callable[[], object]) -> None:
        self.now = 0.0
        self._happens = {float(name.removeprefix("at_")): what for name, what in happens.items()}
        monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(module, "Event", lambda: self)

    def monotonic(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        for when in [when for when in self._happens if when <= self.now]:
            self._happens.pop(when)()


def test_silence_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the last row."""
    writer = Writer(tmp_path, by_hand([0] * 9), {})

    def round() -> None:
        for _ in range(5):
            writer.step()

    clock = Clock(monkeypatch, at_8=round, at_16=round, at_24=round)
    rows, found = fedkeel.follow(tmp_path, "rounds", timeout=10, poll_seconds=4), list[int]()
    with pytest.raises(TimeoutError, match=f"^follow: the run in {tmp_path} is not complete, and .* row for 10 s$"):
        found.extend(row.round for row in rows)
    assert found == [1, 2, 3]
    assert clock.now == 34
    writer.close()


def test_a_run_that_has_not_begun_is_waited_for(
    finished: tuple[Path, Live], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for its first row counts from its beginning."""

    def begin() -> None:
        (tmp_path / "a").mkdir()
        writer.append(Writer(tmp_path / "a", *template(finished[0])))

    def end() -> None:
        while not writer[0].complete:
            writer[0].step()
        writer[0].close()

    writer: list[Writer] = []
    clock = Clock(monkeypatch, at_8=begin, at_16=end)
    rows = fedkeel.follow(tmp_path / "a", timeout=10, poll_seconds=4)
    assert [timeless(row) for row in rows] == [timeless(row) for row in fedkeel.follow(finished[0])]
    assert clock.now == 16


@pytest.mark.parametrize("begun", [True, False])
def test_another_thread_ends_it(begun: bool, tmp_path: Path) -> None:
    if begun:
        Writer(tmp_path, by_hand([0]), {})
    stop, rows = Event(), list[Row]()
    followed = fedkeel.follow(tmp_path, timeout=60, poll_seconds=60, stop=stop)
    thread = Thread(target=lambda: rows.extend(followed))
    thread.start()
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert rows == []


def test_a_run_that_never_begins_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(TimeoutError, match=f"^follow: no run has begun in {tmp_path}/a for 10 s$"):
        next(fedkeel.follow(tmp_path / "a", timeout=10, poll_seconds=4))
    assert clock.now == 10


def test_a_run_of_a_later_version_is_refused_when_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin() -> None:
        (tmp_path / "run.json").write_text('{"schema": 9}')
        (tmp_path / "experiment.yaml").touch()

    Clock(monkeypatch, at_4=begin)
    rows = fedkeel.follow(tmp_path, timeout=10, poll_seconds=4)
    with pytest.raises(InputError, match="its schema must be at most 2; got 9"):
        next(rows)


# Processes.

WORDS = [
    "run", "model=linear", "rounds=120", "clients=6", "per_round=3", "dataset.train_limit=60", "dataset.test_limit=30",
    "algorithm=fedasmu", "local.epochs=2", "fleet.speed_ratio=5", "faults.lost_upload=0.1", "faults.twice=0.1",
    "executor.kind=serial", "executor.stack=0", "executor.channels_last=false", "checkpoint.rounds=10",
    "checkpoint.seconds=null", "--out", "a",
]  # fmt: skip


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from fedkeel.cli import main; main()", *words]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


@pytest.mark.slow
def test_a_run_is_followed_across_a_kill(tmp_path: Path) -> None:
    running, found = start(tmp_path, *WORDS), list[Row]()
    try:
        for row in fedkeel.follow(tmp_path / "a", timeout=120, poll_seconds=0.02):
            found.append(row)
            if isinstance(row, Round) and row.round == 14:  # the last checkpoint is of round 10, or a little later
                os.kill(running.pid, signal.SIGKILL)
                assert running.wait(60) == -signal.SIGKILL
                running = start(tmp_path, "run", "--resume", "a")
        assert running.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        running.kill()
        running.wait()
    assert "goes on after round" in (tmp_path / "log").read_text()
    for kind, row_type in KINDS.items():
        assert [timeless(row) for row in found if isinstance(row, row_type)] == in_files(tmp_path / "a", kind), kind
    assert [row.round for row in found if isinstance(row, Round)] == [*range(1, 121)]
