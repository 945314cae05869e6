"""The live page over real sockets: runs that go on, are killed and resumed, and readers of all kinds."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest

import fedkeel
from fedkeel import Experiment
from fedkeel.api import resume
from fedkeel.errors import InputError
from fedkeel.report.live import handler, snapshot, sources, watch
from fedkeel.report.live.crowd import MOST
from fedkeel.report.live.server import LiveServer, serve
from fedkeel.report.live.sources import Sources
from fedkeel.report.live.watch import Watch
from fedkeel.report.page.digest import digest
from fedkeel.study.adhoc import gather
from fedkeel.study.plan import Comparison, Measure, cross
from fedkeel.study.store import Store
from tests.helpers import federation
from tests.helpers.browser import Event, Stream, ask, served
from tests.helpers.processes import ended, forked
from tests.helpers.report_folders import EXPERIMENT

DESCRIBED = Experiment(
    algorithm="fedavg",
    rounds=6,
    per_round=3,
    dtype="float64",
    checkpoint={"rounds": 2},
    executor={"kind": "serial"},
    local={"epochs": 1, "batch_size": 4, "lr": 0.1},
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(handler, "LOOK_SECONDS", 0.05)


class Stepped:
    """A real run in a process of its own, which waits at the start and after each round until it is told to go on."""

    def __init__(self, folder: Path) -> None:
        self._told, self._tell = os.pipe()
        self.process = forked(lambda: self._work(folder), folder.with_suffix(".log"))
        os.close(self._told)

    def _work(self, folder: Path) -> None:
        os.close(self._tell)
        given: Any = {"data": federation.data(), "model": federation.net(), "progress": lambda _: self._wait()}
        self._wait()
        if folder.exists():
            resume(folder, **given)
        else:
            fedkeel.run(DESCRIBED, folder, **given)

    def _wait(self) -> None:
        os.read(self._told, 1)

    def step(self, times: int = 1) -> None:
        os.write(self._tell, b"x" * times)

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        assert self._end() == -signal.SIGKILL

    def end(self) -> None:
        """Let it go on to its end."""
        assert self._end() == 0

    def _end(self) -> int:
        os.close(self._tell)
        return ended(self.process)


def row(round: int, accuracy: float = 0.5) -> str:
    told = {
        "round": round, "version": round, "virtual_seconds": 2.0 * round, "wall_seconds": 1.0, "accuracy": accuracy,
        "loss": 1.0, "train_loss": 1.0, "bytes_up": 10 * round, "bytes_down": 10 * round, "updates": round,
    }  # fmt: skip
    return json.dumps(told) + "\n"


def folder_with(path: Path, rounds: int) -> Path:
    """A run of which so many rounds were tested."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "experiment.yaml").write_text(EXPERIMENT)
    (path / "history.jsonl").write_text("".join(map(row, range(1, rounds + 1))))
    return path


def add(folder: Path, round: int) -> None:
    with (folder / "history.jsonl").open("a") as file:
        file.write(row(round))


def rewrite(folder: Path, text: str) -> None:
    """At once, so that nobody sees a part of it."""
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "history.jsonl")


def finish(folder: Path) -> None:
    (folder / "summary.json").write_text("{}")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return folder_with(tmp_path / "run", 2)


def straight(*paths: Path) -> Any:
    """What the folders hold, read at once."""
    return json.loads(json.dumps(digest(gather(paths))))


def rounds(event: Event) -> int | None:
    return event.data["figures"]["rounds"]


def until(stream: Iterator[Event], round: int) -> Event:
    return next(event for event in stream if rounds(event) == round)


def test_a_run_is_seen_from_before_its_beginning_over_a_kill_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second = Stepped(folder), Stepped(folder)
    with served(folder) as server, Stream(server) as stream:
        events = iter(stream)
        begin = next(events).data
        assert (begin["complete"], begin["runs"]) == (False, {"all": 1, "not begun": 1})
        assert f"no run has begun in {folder} yet" in begin["notes"][0]
        assert b"no run has begun in" in ask(server).body
        first.step()
        for round in (1, 2, 3):
            assert until(events, round).data["runs"] == {"all": 1, "going on": 1}
            if round < 3:
                first.step()
        first.kill()
        assert next(events).data["runs"] == {"all": 1, "stopped": 1}
        second.step(2)  # the checkpoint is that of round 2: the third comes again
        assert until(events, 4).data["runs"] == {"all": 1, "going on": 1}
        second.end()
        last = next(event for event in events if event.data["complete"])
        assert last.data == straight(folder) == json.loads(ask(server, "/digest.json").body)
        assert rounds(last) == 6


def test_a_comparison_fills_in(tmp_path: Path) -> None:
    base = {"rounds": 3, "clients": 4, "per_round": 2}
    cases = cross(base, {"": []}, {"a": ["algorithm=fedavg"], "b": ["algorithm=fedprox"]}, [0])
    store = Store(tmp_path / "comparison")
    plan = Comparison("two methods", cases, Measure())
    with served(store.path) as server, Stream(server) as stream:
        events = iter(stream)
        assert next(events).data["runs"] == {"all": 1, "not begun": 1}
        store.keep(plan)
        states = (event.data["runs"] for event in events)
        assert {"all": 2, "not begun": 2} in states
        folder_with(store.folder(cases[0].name), 3)
        assert {"all": 2, "stopped": 1, "not begun": 1} in states
        finish(store.folder(cases[0].name))
        assert {"all": 2, "finished": 1, "not begun": 1} in states
        store.fail(cases[1].name, "InputError", "it went wrong")
        last = next(event.data for event in events if event.data["complete"])
        assert last["failed"][0]["reason"] == "it went wrong"
        assert last == straight(store.path)


def test_runs_that_are_added_to_what_was_complete_are_seen(tmp_path: Path) -> None:
    store = Store(tmp_path / "comparison")
    plans = [
        Comparison("more seeds", cross({"rounds": 2, "clients": 4}, {"": []}, {"a": []}, seeds), Measure())
        for seeds in ([0], [0, 1])
    ]
    store.keep(plans[0])
    finish(folder_with(store.folder(plans[0].cases[0].name), 2))
    with served(store.path) as server, Stream(server) as stream:
        events = iter(stream)
        assert next(events).data["complete"]
        store.keep(plans[1])
        more = next(events).data
        assert (more["complete"], more["runs"]) == (False, {"all": 2, "finished": 1, "not begun": 1})


def test_a_page_goes_on_where_it_was_when_the_server_comes_back(run: Path) -> None:
    with served(run) as server, Stream(server) as stream:
        events, port = iter(stream), server.server_port
        seen = next(events)
        server.watch.stop()
        assert list(events) == []  # the stream ends with the server
    with served(run, port=port) as server, Stream(server, seen.tag) as stream:
        assert server.server_port == port
        add(run, 3)
        assert rounds(next(iter(stream))) == 3  # what it has seen does not come again


def test_readers_get_signs_of_life(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "BEAT_SECONDS", 0.1)
    with served(run) as server, Stream(server) as stream:
        lines = (line for line in stream.response)
        assert b": still here\n" in lines


def test_as_many_readers_as_there_is_room_for(run: Path) -> None:
    with served(run) as server:
        streams = [Stream(server) for _ in range(MOST)]
        readers = [iter(stream) for stream in streams]
        assert {rounds(next(reader)) for reader in readers} == {2}
        refused = ask(server)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
        add(run, 3)
        assert {rounds(next(reader)) for reader in readers} == {3}
        for stream in streams[1:]:
            stream.__exit__()
        until_free(server, 1)
        assert ask(server).status == 200
        streams[0].__exit__()


def until_free(server: LiveServer, most: int) -> None:
    """Wait until connections have been let go."""
    for _ in range(1200):
        if server.crowd.count <= most:
            return
        Flag().wait(0.05)
    raise AssertionError(f"{server.crowd.count} connections are still there")


def test_a_reader_that_does_not_read_holds_up_nobody(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler.Handler, "timeout", 0.5)
    real = snapshot.digest
    monkeypatch.setattr(snapshot, "digest", lambda results: {**real(results), "large": "x" * 30_000_000})
    with served(run) as server, socket.create_connection(("127.0.0.1", server.server_port)) as slow:
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        monkeypatch.setattr(handler.Handler, "timeout", 60)  # on a busy machine, the other one is slow, too
        with Stream(server) as stream:
            events = iter(stream)
            assert rounds(next(events)) == 2
            add(run, 3)
            assert rounds(next(events)) == 3
            until_free(server, 1)  # the slow one was given up


def test_what_came_while_a_reader_was_busy_is_passed_over(run: Path) -> None:
    looking = Watch(Sources((run,)))
    seen = looking.newest.tag
    assert looking.wait(seen, 0) is None
    looking.start()
    for round in (3, 4, 5):
        add(run, round)
    while (newest := looking.wait(seen, 60)) is not None and newest.results.outcomes[0].history[-1]["round"] < 5:
        seen = newest.tag
    add(run, 6)
    found = looking.wait(looking.newest.tag, 60)
    assert found is not None
    assert found.results.outcomes[0].history[-1]["round"] == 6
    looking.stop()
    assert looking.wait(looking.newest.tag, 60) is None  # at once


def test_folders_are_read_only_when_something_changed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, marks, idle = [], [], Flag()
    real, mark = sources.gather, Sources.mark
    monkeypatch.setattr(sources, "gather", lambda paths: (calls.append(1), real(paths))[1])

    def counted(self: Sources, folders: Any) -> Any:
        marks.append(1)
        if len(marks) >= 10:
            idle.set()
        return mark(self, folders)

    monkeypatch.setattr(Sources, "mark", counted)
    with served(run) as server:
        for _ in range(5):
            ask(server), ask(server, "/digest.json")
        assert idle.wait(60)
        assert len(calls) == 2  # at the start, and when it was known which folders to look after
        with Stream(server) as stream:
            events = iter(stream)
            next(events)
            add(run, 3)
            assert rounds(next(events)) == 3
        assert len(calls) == 3


def test_damage_is_told_when_it_stays_and_forgotten_when_it_is_gone(run: Path) -> None:
    with served(run) as server, Stream(server) as stream:
        events = iter(stream)
        whole, before = (run / "history.jsonl").read_text(), next(events).data
        rewrite(run, "nonsense\n" + whole)
        told = next(events).data
        assert "history.jsonl is damaged" in told["notes"][-1]
        assert told["figures"] == before["figures"]
        rewrite(run, whole)
        assert next(events).data == before


def test_what_looks_wrong_once_is_not_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fails = sources.gather, [False]

    def sometimes(paths: Any) -> Any:
        if fails.pop() if fails else False:
            raise InputError("cut off")
        return real(paths)

    monkeypatch.setattr(sources, "gather", sometimes)
    looking = Watch(Sources((run,)))
    fails.append(True)
    looking.start()
    add(run, 3)
    newest = looking.wait(looking.newest.tag, 60)
    assert newest is not None
    assert (newest.results.outcomes[0].history[-1]["round"], fails) == (3, [])
    assert json.loads(newest.digest)["notes"] == []
    looking.stop()


def test_a_failure_of_any_kind_is_told_and_does_not_end_the_watch(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(run) as server, Stream(server) as stream:
        events = iter(stream)
        next(events)
        with monkeypatch.context() as patch:
            patch.setattr(sources, "gather", lambda _: 1 / 0)
            add(run, 3)
            notes = next(event.data["notes"] for event in events if event.data["notes"])
            assert notes[-1].startswith("this page shows an earlier state (division by zero")
        add(run, 4)
        assert until(events, 4).data == straight(run)


def test_a_search_is_watched_from_its_beginning(tmp_path: Path) -> None:
    for name in ("search.json", "trials.jsonl", "executors.json", "search.json.partial", "runs"):
        (tmp_path / name).touch()
        Sources((tmp_path,)).check()
    (tmp_path / "letter.txt").touch()
    with pytest.raises(InputError, match="holds neither a run nor a comparison"):
        Sources((tmp_path,)).check()


def test_folders_that_will_hold_no_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    for name, words in (("file", "is a file"), ("other", "holds neither a run nor a comparison")):
        with pytest.raises(InputError, match=words):
            serve([tmp_path / name], 0)
    with pytest.raises(InputError, match="no folder is given"):
        serve([], 0)


def test_several_runs_of_which_one_is_to_come(run: Path) -> None:
    later = run.with_name("later")
    with served(run, later) as server, Stream(server) as stream:
        events = iter(stream)
        assert next(events).data["runs"] == {"all": 2, "stopped": 1, "not begun": 1}
        folder_with(later, 1)
        assert {"all": 2, "stopped": 2} in (event.data["runs"] for event in islice(events, 3))
