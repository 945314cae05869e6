"""A server that dies and is started again in the same folder."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkeel import api
from fedkeel.deploy.serving import serve
from fedkeel.errors import FedkeelError, InputError
from fedkeel.world.remote import roster
from fedkeel.world.remote.loopback import Handler, Loopback
from fedkeel.world.remote.message import Message
from tests.helpers import deployed, faulty, processes
from tests.helpers.faulty import SYNCHRONOUS, KilledError, Mortal

NAMES = ("round", "version", "accuracy", "loss", "train_loss", "updates", "bytes_up", "bytes_down")
CLIENTS = ("round", "client", "job", "epochs", "steps", "train_loss", "weight")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "AGAIN", 0.2)
    monkeypatch.setattr(roster, "LOOK", 0.05)


def rows(told: faulty.Told, kind: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names if name in row} for row in told.rows(kind)]


def finished(app: Path, out: Path, nodes: dict[int, Handler], kills: list[tuple[int, int]]) -> faulty.Told:
    """Start the server as often as it takes; it dies at these points."""
    for pushes, replies in kills:
        with pytest.raises(KilledError):
            faulty.run(app, out, Mortal(nodes, pushes, replies))
    return faulty.run(app, out, Loopback(nodes))


@pytest.mark.slow
@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_a_resumed_run_is_the_run_that_was_not_stopped(method: str, tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", method)
    expected = deployed.simulated(app)
    whole = faulty.run(app, tmp_path / "whole")
    for point in range(2, 12, 3):
        with deployed.own_modules(app):
            nodes = deployed.silos(app)
        kills = [(point, 10**9), (10**9, 3 + point % 3)]
        told = finished(app, tmp_path / f"run-{point}", nodes, kills)
        deployed.assert_equal(deployed.weights(told.folder), expected.model.state_dict())
        assert rows(told, "history", NAMES) == rows(whole, "history", NAMES), point
        assert rows(told, "clients", CLIENTS) == rows(whole, "clients", CLIENTS), point
        assert [row["round"] for row in told.rows("rounds")] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbuff", "fedasmu"])
def test_asynchronous_runs_go_on(method: str, tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", method, rounds=4)
    for point in range(4, 16, 5):
        with deployed.own_modules(app):
            nodes = deployed.silos(app)
        told = finished(app, tmp_path / f"run-{point}", nodes, [(point, 10**9), (10**9, 4)])
        assert [row["round"] for row in told.rows("rounds")] == [1, 2, 3, 4]
        assert told.rows("history")[-1]["updates"] == len(told.rows("clients")) >= 12
        assert {row["why"] for row in told.rows("unfinished")} <= {"server restarted", "in flight"}


@pytest.mark.slow
def test_states_are_kept_for_as_long_as_a_checkpoint_needs_them(tmp_path: Path) -> None:
    """With a checkpoint every fifth round, a server that dies just before goes back by nine jobs of each site."""
    app = faulty.project(tmp_path / "app", "scaffold", rounds=12, checkpoint={"rounds": 5})
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    told = finished(app, tmp_path / "run", nodes, [(3 + 3 * 9, 10**9), (3 + 3 * 4, 10**9)])
    deployed.assert_equal(deployed.weights(told.folder), deployed.simulated(app).model.state_dict())
    for site in (app / "state").iterdir():
        states = sorted(int(path.stem.removeprefix("kept-")) for path in site.glob("*/kept-*.msg"))
        assert 1 <= len(states) <= 10, states  # not of all rounds
        assert states[0] > 3


@pytest.mark.slow
def test_a_server_killed_for_good_is_resumed(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", "scaffold", rounds=6)
    history = tmp_path / "run" / "history.jsonl"

    def serve() -> None:
        transport = Loopback(deployed.silos(app), down=lambda _, body: [(0.3, body)])  # time to be killed
        deployed.deployed(app, tmp_path / "run", transport)

    for enough in (1, 3):
        process = processes.forked(serve, tmp_path / "log")
        try:
            end = time.monotonic() + 60
            while not (history.exists() and history.read_text().count("\n") >= enough) and time.monotonic() < end:
                time.sleep(0.01)
            assert os.waitpid(process, os.WNOHANG) == (0, 0), "it ended before it was killed"
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    told = faulty.run(app, tmp_path / "run")
    deployed.assert_equal(deployed.weights(told.folder), deployed.simulated(app).model.state_dict())
    assert [row["round"] for row in told.rows("history")] == [*range(1, 7)]


def test_a_server_that_dies_before_it_wrote_who_is_there_starts_again(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app")
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    with pytest.raises(KilledError):
        faulty.run(app, tmp_path / "run", Mortal(nodes, 0, kind="train"))
    (tmp_path / "run" / "deployment.json").unlink()
    told = faulty.run(app, tmp_path / "run", Loopback(nodes))
    deployed.assert_equal(deployed.weights(told.folder), deployed.simulated(app).model.state_dict())


def test_a_complete_run_and_a_damaged_record_are_refused(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=1)
    faulty.run(app, tmp_path / "run")
    with pytest.raises(InputError, match="is complete"):
        faulty.run(app, tmp_path / "run")
    with deployed.own_modules(app), pytest.raises(KilledError):
        faulty.run(app, tmp_path / "other", Mortal(deployed.silos(app), 1, kind="train"))
    (tmp_path / "other" / "deployment.json").write_text('{"run": 3')
    with pytest.raises(FedkeelError, match=r"deployment\.json cannot be read .* cannot be resumed"):
        faulty.run(app, tmp_path / "other")


def test_the_run_of_another_project_or_a_simulation_is_refused(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=1)
    faulty.run(app, tmp_path / "run")
    other = faulty.project(tmp_path / "other", "scaffold", rounds=1)
    with pytest.raises(InputError, match=r"the run in .*/run has algorithm.name=fedavg, not scaffold as in .*/other/"):
        faulty.run(other, tmp_path / "run")
    longer = faulty.project(tmp_path / "longer", rounds=2)
    with pytest.raises(InputError, match=r"the run in .*/run has rounds=1, not 2 as in"):
        faulty.run(longer, tmp_path / "run")
    (tmp_path / "run" / "deployment.json").unlink()
    with pytest.raises(InputError, match="holds a simulation"):
        faulty.run(app, tmp_path / "run")


def test_a_run_is_recorded_from_its_beginning_or_not_at_all(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=3)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    with pytest.raises(KilledError):
        faulty.run(app, tmp_path / "run", Mortal(nodes, 7, kind="train"))
    settings = (app / "deploy.yaml").read_text()
    (app / "deploy.yaml").write_text(f"{settings}record_uploads: true\n")
    with pytest.raises(InputError, match="record_uploads cannot change when a run is resumed"):
        faulty.run(app, tmp_path / "run", Loopback(nodes))
    (app / "deploy.yaml").write_text(settings)
    assert len(faulty.run(app, tmp_path / "run", Loopback(nodes)).rows("history")) == 3


def test_sessions_grow_even_if_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = faulty.project(tmp_path / "app")
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    with pytest.raises(KilledError):
        faulty.run(app, tmp_path / "run", Mortal(nodes, 2, kind="train"))
    before = json.loads((tmp_path / "run" / "deployment.json").read_text())
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000)
    faulty.run(app, tmp_path / "run", Loopback(nodes))
    after = json.loads((tmp_path / "run" / "deployment.json").read_text())
    assert after["run"] == before["run"]
    assert after["session"] == before["session"] + 1


def test_sites_take_part_in_the_next_run_of_a_server_whose_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = faulty.project(tmp_path / "app", sites=2, rounds=1)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    for folder, clock in (("ahead", 10**20), ("behind", 10**6)):
        monkeypatch.setattr(time, "time_ns", lambda clock=clock: clock)
        assert len(faulty.run(app, tmp_path / folder, Loopback(nodes)).rows("clients")) == 2


def test_messages_of_an_earlier_start_or_run_are_refused_by_a_site(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=1)
    seen: list[bytes] = []

    def spied(handler: Handler) -> Handler:
        return lambda body: (seen.append(body), handler(body))[1]

    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    faulty.run(app, tmp_path / "one", Loopback({**nodes, 1: spied(nodes[1])}))
    (train,) = [body for body in seen if faulty.kind(body) == "train"]
    assert faulty.kind(seen[-1]) == "complete"
    faulty.run(app, tmp_path / "two", Loopback(nodes))
    told = Message.unpack(seen[0]).facts
    for body in [*seen, *(Message(kind, told).pack() for kind in ("refused", "interrupt", "cancel", "pooled"))]:
        answer = Message.unpack(nodes[1](body))
        assert (answer.kind, answer.facts["superseded"]) == ("failed", True)
        assert "earlier start of the server" in answer.facts["why"]
    came = Message.unpack(train)
    other = Message(came.kind, {**came.facts, "session": came.facts["session"] + 10**9, "run": "0" * 32}, came.tensors)
    answer = Message.unpack(nodes[1](other.pack()))
    assert answer.facts["unknown"] is True


def once(kind: str, handler: Handler, act: Callable[[bytes], None]) -> Handler:
    """Something happens when the first message of a kind comes."""
    left = [act]

    def answer(body: bytes) -> bytes:
        if faulty.kind(body) == kind and left:
            left.pop()(body)
        return handler(body)

    return answer


@pytest.mark.parametrize("when", ["hello", "train"])
def test_a_second_server_in_the_same_folder_is_refused_before_it_asks_anything(when: str, tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", sites=2, rounds=2)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)

    ends: list[BaseException] = []

    def second(_: bytes) -> None:
        try:
            serve(Mortal(nodes, 0), app, tmp_path / "run", tell=print)
        except BaseException as error:
            ends.append(error)

    told = faulty.run(app, tmp_path / "run", Loopback({**nodes, 1: once(when, nodes[1], second)}))
    assert [str(error) for error in ends] == [f"{tmp_path / 'run'} is in use; wait until the other process has ended"]
    assert [row["arrived"] for row in told.rows("rounds")] == [2, 2]


def test_a_server_whose_sites_were_taken_over_ends(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", sites=2, rounds=2)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)

    def take_over(body: bytes) -> None:
        facts = Message.unpack(body).facts
        hello = Message("hello", {"run": facts["run"], "session": facts["session"] + 1}).pack()
        assert {faulty.kind(node(hello)) for node in nodes.values()} == {"here"}

    spied = {**nodes, 1: once("train", nodes[1], take_over)}
    with pytest.raises(InputError, match="another server has taken over the sites"):
        faulty.run(app, tmp_path / "run", Loopback(spied))


def test_a_simulation_does_not_go_on_with_a_deployment(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=2)
    with deployed.own_modules(app), pytest.raises(KilledError):
        faulty.run(app, tmp_path / "run", Mortal(deployed.silos(app), 1, kind="train"))
    with pytest.raises(InputError, match="one on real machines; resume it with fedkeel deploy server APP --out"):
        api.resume(tmp_path / "run")
