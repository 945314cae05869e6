"""Links that lose, double, delay and reorder messages, and nodes that fail, leave and come back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkeel.errors import FedkeelError
from fedkeel.world.remote import roster
from fedkeel.world.remote.loopback import Handler, Loopback
from fedkeel.world.remote.transport import Reply
from tests.helpers import deployed, faulty, timed
from tests.helpers.faulty import SYNCHRONOUS, Losing, Unreachable, kind

NAMES = ("round", "accuracy", "loss", "train_loss", "updates")


def restarting(app: Path, handlers: dict[int, Handler]) -> dict[int, Handler]:
    """Every message finds a new process with nothing but its disk."""

    def renewed(node: int) -> Handler:
        return lambda body: deployed.silo(app, node - 1).answer(body)

    return {node: renewed(node) for node in handlers}


MENDED: dict[str, Callable[[Path, dict[int, Handler]], Loopback]] = {
    "doubled": lambda _, nodes: Loopback(nodes, down=faulty.doubled, up=faulty.doubled),
    "slow": lambda _, nodes: Loopback(nodes, down=faulty.slow, up=faulty.slow),
    "shuffled": lambda _, nodes: Loopback(nodes, True, faulty.shuffled(1), faulty.shuffled(2)),
    "fails before": lambda _, nodes: Loopback({n: faulty.failing(h, 3, False) for n, h in nodes.items()}),
    "fails after": lambda _, nodes: Loopback({n: faulty.failing(h, 3, True) for n, h in nodes.items()}),
    "unreachable": lambda _, nodes: Unreachable(nodes, every=9, calls=3),
    "restarted": lambda app, nodes: Loopback(restarting(app, nodes)),
}
"""Faults that cost time but no work."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "AGAIN", 0.2)
    monkeypatch.setattr(roster, "LOOK", 0.05)


@pytest.fixture
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    timed.idle(monkeypatch)


def expected_rows(app: Path) -> tuple[Any, list[list[Any]]]:
    expected = deployed.simulated(app)
    return expected, [[row[name] for name in NAMES] for row in expected.history]


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        pytest.param(fault, method, marks=() if (fault, method) == ("shuffled", "scaffold") else pytest.mark.slow)
        for method in SYNCHRONOUS
        for fault in (MENDED if method == "scaffold" else ("shuffled", "restarted"))
    ],
)
def test_faults_that_lose_no_work_change_nothing(fault: str, method: str, tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", method)
    with deployed.own_modules(app):
        transport = MENDED[fault](app, deployed.silos(app))
    told = faulty.run(app, tmp_path / "run", transport)
    expected, rows = expected_rows(app)
    deployed.assert_equal(deployed.weights(tmp_path / "run"), expected.model.state_dict())
    assert [[row[name] for name in NAMES] for row in told.rows("history")] == rows
    assert told.rows("unfinished") == []
    assert {row["reason"] for row in told.rows("refused")} <= {"duplicate", "old job"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "method"),
    [*((fault, "fedasmu") for fault in MENDED), *((fault, "fedbuff") for fault in ("shuffled", "restarted"))],
)
def test_asynchronous_runs_complete_in_spite_of_faults(fault: str, method: str, tmp_path: Path) -> None:
    if (fault, method) == ("restarted", "fedasmu"):
        pytest.skip("no job would survive until its second message")
    app = faulty.project(tmp_path / "app", method)
    with deployed.own_modules(app):
        transport = MENDED[fault](app, deployed.silos(app))
    told = faulty.run(app, tmp_path / "run", transport)
    history = told.rows("history")
    assert [row["round"] for row in history] == [1, 2, 3]
    assert history[-1]["updates"] == sum(1 for _ in told.rows("clients")) >= 9
    assert history[-1]["loss"] < history[0]["loss"] * 1.5


LOST = {
    "train": ("down", "train", {}),
    "done": ("up", "done", {}),
    "deadline": ("up", "done", {"schedule": {"deadline_seconds": 0.5}}),
}


@pytest.mark.slow
@pytest.mark.usefixtures("_idle")
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbuff", "fedasmu"])
@pytest.mark.parametrize("lost", LOST)
def test_a_message_that_is_lost_without_a_trace_costs_one_job(lost: str, method: str, tmp_path: Path) -> None:
    way, which, more = LOST[lost]
    if lost == "deadline" and method in ("fedbuff", "fedasmu"):
        pytest.skip("deadlines are for rounds")
    app = faulty.project(tmp_path / "app", method, deploy={"job_seconds": 1.0}, **more)
    losing = Losing(which, [1])
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app), **{way: losing})  # type: ignore[arg-type]
    told = faulty.run(app, tmp_path / "run", transport)
    why = "too late" if lost == "deadline" else "no answer"
    ended = [(row["client"] + 1, row["why"]) for row in told.rows("unfinished")]
    assert told.summary["rounds"] == 3
    if method in SYNCHRONOUS:
        assert ended == [(losing.lost[0], why)]
        assert len(told.rows("clients")) >= 6
    else:
        assert {(losing.lost[0], why), (losing.lost[0], "in flight")} & {*ended}


@pytest.mark.slow
@pytest.mark.usefixtures("_idle")
def test_the_time_for_a_job_is_measured(tmp_path: Path) -> None:
    limits = {"first_job_seconds": 20, "least_job_seconds": 0.5, "margin": 2.0}
    app = faulty.project(tmp_path / "app", deploy=limits)
    losing = Losing("done", [4])
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app), up=losing)
    told = faulty.run(app, tmp_path / "run", transport)
    (row,) = told.rows("unfinished")
    assert row["why"] == "no answer"
    assert 0.5 <= row["ended"] - row["dispatched"] < 1  # twice the longest one is less


@pytest.mark.slow
def test_a_lost_survey_is_planned_again_without_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets no job for a second or two; here every message takes one, so it is back before the end."""
    timed.idle(monkeypatch, work=1.0)
    app = faulty.project(tmp_path / "app", "fedent", deploy={"job_seconds": 60.0}, rounds=5)
    losing = Losing("answer", [4])
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app), up=losing)
    told = faulty.run(app, tmp_path / "run", transport)
    (lost,) = losing.lost
    rounds = {
        number: [row["client"] + 1 for row in told.rows("clients") if row["round"] == number] for number in range(1, 6)
    }
    assert sorted(rounds[1]) == sorted(rounds[5]) == [1, 2, 3]
    assert sorted([*rounds[2], lost]) == [1, 2, 3]
    assert told.rows("unfinished") == []


@pytest.mark.slow
def test_a_node_that_leaves_comes_back_with_what_it_kept(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", "scaffold", rounds=6)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    transport = Loopback(nodes)
    count = 0

    def leaving(body: bytes) -> bytes:
        nonlocal count
        count += kind(body) == "train"
        if count == 2:
            del transport.handlers[2]
            threading.Timer(0.5, come_back).start()
            raise OSError("gone")
        return nodes[2](body)

    def come_back() -> None:
        transport.handlers[2] = deployed.silo(app, 1).answer

    transport.handlers[2] = leaving
    told = faulty.run(app, tmp_path / "run", transport)
    assert told.rows("unfinished") == []  # its job was sent again
    deployed.assert_equal(deployed.weights(tmp_path / "run"), deployed.simulated(app).model.state_dict())
    assert any("site-1 is not connected any more" in line for line in told.lines)


@pytest.mark.slow
@pytest.mark.usefixtures("_idle")
def test_a_node_that_leaves_for_good_costs_the_others_little(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=4, deploy={"absent_seconds": 0.5})
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app))

    def leaving(_: bytes) -> bytes:
        del transport.handlers[2]
        raise OSError("gone")

    inner = transport.handlers[2]
    transport.handlers[2] = lambda body: (leaving if kind(body) == "train" else inner)(body)
    told = faulty.run(app, tmp_path / "run", transport)
    (row,) = told.rows("unfinished")
    assert row["client"] == 1
    assert row["why"].startswith("failed: the node failed (OSError: gone)")
    assert row["ended"] - row["dispatched"] < 5  # a job may take 30
    assert [row["client"] for row in told.rows("clients")] == [0, 2] * 4


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_node_whose_state_is_gone_joins_anew(method: str, tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", method)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    trains = 0

    def forgetful(body: bytes) -> bytes:
        nonlocal trains
        trains += kind(body) == "train"
        if trains == 2 and kind(body) == "train":
            shutil.rmtree(app / "state" / "site-1")
        return nodes[2](body)

    told = faulty.run(app, tmp_path / "run", Loopback({**nodes, 2: forgetful}))
    assert any("site-1 is back" in line for line in told.lines)
    assert told.rows("unfinished") == []  # its job was sent again
    assert len(told.rows("clients")) == 9
    if method == "fedavg":
        deployed.assert_equal(deployed.weights(tmp_path / "run"), deployed.simulated(app).model.state_dict())


@pytest.mark.slow
def test_a_half_trained_job_that_dies_with_its_process_is_lost_alone(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", "fedasmu", rounds=4)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    died: list[bytes] = []

    def dying(body: bytes) -> bytes:
        if kind(body) == "fresh" and not died:
            died.append(body)
            nodes[2] = deployed.silo(app, 1).answer
        return nodes[2](body)

    told = faulty.run(app, tmp_path / "run", Loopback({**nodes, 2: dying}))
    lost = [row for row in told.rows("unfinished") if row["why"] != "in flight"]
    assert [(row["client"], "is not here any more" in row["why"]) for row in lost] == [(1, True)]
    assert told.rows("history")[-1]["updates"] >= 12


@pytest.mark.slow
def test_a_site_that_joins_late_takes_part_from_then_on(tmp_path: Path) -> None:
    """It comes in the second round, and the third one is not over before it is there."""
    app = faulty.project(tmp_path / "app", "scaffold", deploy={"wait_for": 2}, rounds=6)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    late, joined = nodes.pop(3), threading.Event()

    def coming(body: bytes) -> bytes:
        answer = late(body)
        if kind(answer) in ("here", "ready"):
            joined.set()
        return answer

    def down(_: int, body: bytes) -> list[tuple[float, bytes]]:
        nonlocal trains
        trains += kind(body) == "train"
        if trains == 3:
            transport.handlers[3] = coming
        return [(0.0, body)]

    def waiting(handler: Handler) -> Handler:
        def answer(body: bytes) -> bytes:
            assert trains < 5 or joined.wait(30)
            return handler(body)

        return answer

    trains = 0
    transport = Loopback({node: waiting(each) for node, each in nodes.items()}, down=down)
    told = faulty.run(app, tmp_path / "run", transport)
    rounds = [row["round"] for row in told.rows("clients") if row["client"] == 2]
    assert rounds
    assert rounds[0] in (3, 4, 5, 6)
    assert rounds == [*range(rounds[0], 7)]


@pytest.mark.usefixtures("_idle")
def test_sites_that_never_come_are_named(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", deploy={"join_seconds": 1.0})
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    nodes[3] = lambda _: b"nonsense"
    del nodes[2]
    with pytest.raises(
        FedkeelError, match=r"only 1 of 3 sites came .*missing: site-1, site-2 \(node 3: it is no message"
    ):
        faulty.run(app, tmp_path / "run", Loopback(nodes))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("_idle")
def test_a_run_that_all_sites_have_left_says_so(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", deploy={"join_seconds": 2.0, "absent_seconds": 0.2}, rounds=100)
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app))
    count = 0

    def down(_: int, body: bytes) -> list[tuple[float, bytes]]:
        nonlocal count
        count += kind(body) == "train"
        if count > 6:
            transport.handlers.clear()
        return [(0.0, body)]

    transport._down = down
    with pytest.raises(FedkeelError, match="no site has been there for 2 seconds"):
        faulty.run(app, tmp_path / "run", transport)
    assert (tmp_path / "run" / "history.jsonl").read_text().count("\n") >= 2  # the work until then is there


def test_a_transport_that_stays_away_ends_the_run(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", deploy={"join_seconds": 2.0}, rounds=100)
    with deployed.own_modules(app):
        transport = Unreachable(deployed.silos(app), every=10**9, calls=0)
    threading.Timer(1.0, lambda: setattr(transport, "_calls", 10**9)).start()
    with pytest.raises(
        FedkeelError, match=r"(out of reach for 2 seconds \(the link is away\)|only \d of 3 sites came)"
    ):
        faulty.run(app, tmp_path / "run", transport, seconds=40)


def test_nodes_that_fail_for_a_while_do_not_use_up_the_rounds(tmp_path: Path) -> None:
    """All silos are down for a second, and their relays say so at once."""
    app = faulty.project(tmp_path / "app", deploy={"retries": 0}, rounds=10)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    down = threading.Event()
    began = threading.Event()

    def sometimes(handler: Handler) -> Handler:
        def answer(body: bytes) -> bytes:
            if kind(body) == "train" and not began.is_set():
                began.set()
                down.set()
                threading.Timer(1.0, down.clear).start()
            if down.is_set():
                raise OSError("the silo cannot be reached")
            return handler(body)

        return answer

    told = faulty.run(app, tmp_path / "run", Loopback({node: sometimes(each) for node, each in nodes.items()}))
    with_result = {row["round"] for row in told.rows("clients")}
    assert len(with_result) >= 4, told.rows("unfinished")


def test_answers_to_what_nobody_asked_are_dropped(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app")
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app))
    transport._came += [Reply("never", 1, b"x" * 100), Reply("never", 77, None, "gone")]
    told = faulty.run(app, tmp_path / "run", transport)
    deployed.assert_equal(deployed.weights(tmp_path / "run"), deployed.simulated(app).model.state_dict())
    assert told.rows("refused") == []
