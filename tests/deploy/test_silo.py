"""A site that is asked several things at once, is interrupted, or dies in the middle of a job."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from fedkeel.deploy.service import listen, main, tell
from fedkeel.deploy.training import Training
from fedkeel.methods.job import Fresh, Job
from fedkeel.record.durable import whole
from fedkeel.wire.orders import Order
from fedkeel.world.remote import envelope, roster
from fedkeel.world.remote.expected import ObjectionError, Reader
from fedkeel.world.remote.loopback import Handler, Loopback
from fedkeel.world.remote.message import Message
from tests.helpers import deployed, faulty, processes


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "AGAIN", 0.2)
    monkeypatch.setattr(roster, "LOOK", 0.05)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Client 1 takes long for every epoch; returns its (job, finished epochs) as they come."""
    seen: list[tuple[int, int]] = []
    usual = Training._middle

    def middle(self: Training, job: Job, finished: int) -> Job | None:
        if self.order.client == 1:
            seen.append((self.order.job, finished))
            time.sleep(0.1)
        return usual(self, job, finished)

    monkeypatch.setattr(Training, "_middle", middle)
    return seen


LONG = {"local": {"epochs": 40, "batch_size": 64, "lr": 0.05}}


@pytest.mark.slow
def test_stale_jobs_are_ended_early_and_tell_their_epochs(slow: list[tuple[int, int]], tmp_path: Path) -> None:
    algorithm = {"name": "port", "minimum": 1, "staleness_bound": 1}
    app = faulty.project(tmp_path / "app", algorithm=algorithm, schedule={"concurrency": 3}, rounds=8, **LONG)
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app), interrupts=True)
    told = faulty.run(app, tmp_path / "run", transport)
    epochs = [row["epochs"] for row in told.rows("clients") if row["client"] == 1]
    assert epochs
    assert all(1 <= each < 40 for each in epochs)
    assert 40 in {row["epochs"] for row in told.rows("clients") if row["client"] != 1}
    assert max(finished for _, finished in slow) < 39
    assert told.rows("refused") == []


@pytest.mark.slow
def test_a_job_that_is_not_needed_frees_its_node(slow: list[tuple[int, int]], tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", per_round=2, schedule={"over_select": 0.5}, **LONG)
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app), interrupts=True)
    told = faulty.run(app, tmp_path / "run", transport)
    assert [(row["client"], row["why"]) for row in told.rows("unfinished")] == [(1, "not needed")] * 3
    assert {job for job, _ in slow}  # it was at work
    assert max(finished for _, finished in slow) < 39
    assert [row["round"] for row in told.rows("history")] == [1, 2, 3]


# Several messages at once.


@contextmanager
def spied(app: Path, out: Path, **more: Any) -> Iterator[tuple[Handler, Message]]:
    """(A silo that has joined a run, its first job)."""
    seen: list[bytes] = []
    with deployed.own_modules(app):
        nodes = deployed.silos(app)

        def spy(body: bytes) -> bytes:
            if faulty.kind(body) != "train":
                return nodes[2](body)
            seen.append(body)
            raise OSError("not now")

        faulty.run(app, out, Loopback({**nodes, 2: spy}, **more))
        yield nodes[2], Message.unpack(seen[0])


def at_once(handler: Handler, *messages: Message) -> list[Message]:
    """All answers to messages that come at the same time."""
    found: dict[int, Message] = {}

    def ask(number: int, message: Message) -> None:
        found[number] = Message.unpack(handler(message.pack()))

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in enumerate(messages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == len(messages), "some were not answered"
    return [found[number] for number in range(len(messages))]


def test_jobs_that_come_together(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", "scaffold", rounds=1, deploy={"retries": 0})
    with spied(app, tmp_path / "run") as (silo, train):
        first, again = at_once(silo, train, train)
        assert first.kind == again.kind == "done"
        assert torch.equal(first.tensors["w"], again.tensors["w"])
        later = replace(train, facts={**train.facts, "job": train.facts["job"] + 3})
        fresh = Message("fresh", {**train.facts, "newer": False})
        assert Message.unpack(silo(fresh.pack())).kind == "done"  # it asked for none, and is over
        answers = at_once(silo, later, train, fresh, later)
        assert [each.kind for each in (answers[0], answers[3])] == ["done", "done"]
        assert torch.equal(answers[0].tensors["w"], first.tensors["w"])  # the same state, mini-batches and start
        old = Message.unpack(silo(train.pack()))
        assert old.kind == "failed"
        assert "is over, as job" in old.facts["why"]
        gone = Message.unpack(silo(fresh.pack()))
        assert gone.facts["gone"] is True


def test_a_job_that_failed_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = faulty.project(tmp_path / "app", "scaffold", rounds=1, deploy={"retries": 0})
    with spied(app, tmp_path / "run") as (silo, train):
        with monkeypatch.context() as patch:
            patch.setattr("fedkeel.deploy.kept.whole", lambda _: (_ for _ in ()).throw(OSError("no room in /data")))
            why = Message.unpack(silo(train.pack())).facts["why"]
            assert why == "it cannot do this (OSError); its own terminal says why"
        assert Message.unpack(silo(train.pack())).kind == "done"


def test_a_later_job_takes_the_place_of_one_that_goes_on(slow: list[tuple[int, int]], tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=1, deploy={"retries": 0}, **LONG)
    with spied(app, tmp_path / "run") as (silo, train):
        tests = Message("evaluate", {**train.facts, "on": "test", "after": [0, 0, 0]}, train.tensors)
        later = replace(train, facts={**train.facts, "job": train.facts["job"] + 1, "session": 10**15})
        one = threading.Thread(target=silo, args=(train.pack(),), daemon=True)
        one.start()
        while not slow:
            time.sleep(0.01)
        begun = time.monotonic()
        assert Message.unpack(silo(tests.pack())).kind == "scores"  # it does not wait for the job
        assert time.monotonic() - begun < 3
        two = threading.Thread(target=silo, args=(later.pack(),), daemon=True)
        two.start()
        one.join(3)  # it was given up
        assert not one.is_alive()
        cancel = Message("cancel", {**later.facts})
        assert Message.unpack(silo(replace(cancel, facts={**cancel.facts, "run": "0" * 32}).pack())).kind == "ok"
        assert two.is_alive()  # another run's job of that number
        silo(cancel.pack())
        two.join(3)
        assert not two.is_alive()


# A process of its own.


@contextmanager
def service(app: Path, number: int, folder: Path) -> Iterator[Path]:
    """A silo behind a socket; a new process takes the place of one that dies.

    While the file `hold` is in the folder, a job stops in its middle and writes the number of its process there.
    """
    path, hold, usual = folder / f"s{number}", folder / "hold", Training._middle

    def middle(self: Training, job: Job, finished: int) -> Job | None:
        if hold.exists():
            with whole(folder / "held") as partial:
                partial.write_text(str(os.getpid()))
            threading.Event().wait()
        return usual(self, job, finished)

    def keep() -> None:
        Training._middle = middle  # type: ignore[method-assign]
        sys.argv = ["service", "--app", str(app), "--site", f"site-{number}", "--socket", str(path)]
        sys.argv += ["--state", str(app / "state" / f"site-{number}")]
        while True:
            child = os.fork()
            if not child:
                main()
            os.waitpid(child, 0)

    keeper = processes.forked(keep, folder / "log")
    try:
        yield path
    finally:
        with suppress(ProcessLookupError):
            os.killpg(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)


@pytest.mark.slow
def test_a_silo_that_is_killed_in_the_middle_of_a_job_does_it_again(tmp_path: Path) -> None:
    siloline = pytest.importorskip("fedkeel.world.flower.siloline")
    app = faulty.project(tmp_path / "app", "scaffold", sites=2, deploy={"retries": 5})
    with tempfile.TemporaryDirectory(dir="/tmp") as short, service(app, 1, Path(short)) as path:
        hold, held, killed = Path(short) / "hold", Path(short) / "held", list[int]()

        def kill() -> None:
            while not held.exists():
                time.sleep(0.01)
            killed.append(int(held.read_text()))
            hold.unlink()
            held.unlink()
            os.kill(killed[-1], signal.SIGKILL)

        def relayed(body: bytes) -> bytes:
            if faulty.kind(body) == "train" and len(killed) < 2:
                hold.touch()
                threading.Thread(target=kill, daemon=True).start()
            answer: bytes = siloline.ask(str(path), body)
            return answer

        with deployed.own_modules(app):
            nodes = {1: deployed.silo(app, 0).answer, 2: relayed}
        told = faulty.run(app, tmp_path / "run", Loopback(nodes))
    assert len({*killed}) == 2
    assert told.rows("unfinished") == []
    deployed.assert_equal(deployed.weights(told.folder), deployed.simulated(app).model.state_dict())


def test_the_socket_answers_garbage_and_goes_on() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        path, ready = Path(short) / "s", threading.Event()
        threading.Thread(target=listen, args=(path, lambda body: body[::-1], ready.set), daemon=True).start()
        assert ready.wait(10)
        assert path.stat().st_mode & 0o077 == 0
        for sent, found in ((b"GET / HTTP/1.1\r\n\r\n", "failed"), (b"", None)):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(path))
                line.sendall(sent)
                line.shutdown(socket.SHUT_WR)
                if found is not None:
                    assert envelope.facts(envelope.receive(line, 10**6))["kind"] == found
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(path))
            envelope.send(line, b"abc")
            assert envelope.receive(line, 10) == b"cba"


def test_what_a_silo_tells_is_a_line_also_after_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    print("50%|#####     |", end="")
    tell("site-1 takes part")
    assert capsys.readouterr().out.splitlines()[-1] == "fedkeel: site-1 takes part"


# Uploads under mutation.


ODD: list[Any] = [None, True, -1, 0, 1, 2, 3, 10**30, 0.5, float("nan"), "", "2", [1], {}]


def mutated(real: Message, draw: Random) -> Message:
    """Another fact, and another tensor."""
    facts, held = dict(real.facts), dict(real.tensors)
    if draw.random() < 0.7:
        facts[draw.choice([*facts])] = draw.choice(ODD)
    name = draw.choice([*held])
    match draw.choice(["as it is", "drop", "more", "type", "shape", "value", "empty"]):
        case "drop":
            del held[name]
        case "more":
            held["more"] = torch.zeros(1)
        case "type":
            held[name] = held[name].to(draw.choice([torch.float64, torch.int64, torch.bool, torch.float16]))
        case "shape":
            held[name] = held[name].reshape(-1)
        case "empty":
            held[name] = held[name][:0]
        case "value" if held[name].numel():
            held[name] = held[name].clone()
            held[name].view(-1)[0] = draw.choice([0, 1, -1])
    return Message(real.kind, facts, held)


def test_mutated_uploads_are_read_or_objected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = faulty.project(tmp_path / "app", "scaffold", rounds=1)
    found: list[tuple[Reader, Order, Fresh[int] | None, Message]] = []
    usual = Reader.upload

    def spy(self: Reader, order: Order, fresh: Fresh[int] | None, message: Message) -> Any:
        found.append((self, order, fresh, message))
        return usual(self, order, fresh, message)

    monkeypatch.setattr(Reader, "upload", spy)
    faulty.run(app, tmp_path / "run")
    (reader, order, fresh, real), draw, read = found[0], Random(3), 0
    for _ in range(300):
        message = Message.unpack(mutated(real, draw).pack())
        try:
            done, trained = usual(reader, order, fresh, message)
        except ObjectionError:
            continue
        read += 1
        assert 1 <= done.epochs <= order.epochs
        assert trained.w.shape == (1, len(order.start))
        assert trained.steps.tolist() == real.tensors["steps"].tolist()
    assert 10 < read < 290
