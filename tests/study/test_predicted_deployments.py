"""Runs on real machines beside their predictions: the seconds of their links and of their work are known."""

from __future__ import annotations

from collections import Counter
from math import inf
from pathlib import Path
from typing import Any

import pytest

from fedkeel.deploy.serving import serve
from fedkeel.record.runs import RunRecord
from fedkeel.record.sites import absences
from fedkeel.study.replay import devices, plan
from fedkeel.world.remote.message import Message
from tests.helpers import deployed, faulty
from tests.helpers.timed import Timed, wound

WAYS = {1: 0.5, 2: 0.25, 3: 1.0}
EPOCHS = {1: 2.0, 2: 5.0, 3: 3.0}
"""Seconds by node."""
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedbuff": {"rounds": 4},
    "fedasmu": {"rounds": 8, "per_round": 1, "schedule": {"trigger_seconds": 3.7, "busy_share": 1.0}},
    "fedent": {},
}


class Working:
    """Nodes at work: their seconds by the epochs that they train, in one part or, if they ask, in two."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}
        """By node that has asked: the epochs before."""
        self.asked: list[bool] = []
        """Whether there was a newer model for who asked."""

    def __call__(self, node: int, message: Message, answer: Message) -> float:
        if message.kind == "fresh":
            self.asked.append(message.facts["newer"])
        if answer.kind == "ask":
            self._done[node] = answer.facts["slot"]
            return EPOCHS[node] * answer.facts["slot"]
        if answer.kind == "done":
            return EPOCHS[node] * (answer.facts["epochs"] - self._done.pop(node, 0))
        return 0.0


@pytest.mark.parametrize("method", METHODS)
def test_a_run_on_real_machines_is_predicted(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = faulty.project(tmp_path / "app", method, **METHODS[method])
    clock, work = wound(monkeypatch), Working()
    with deployed.own_modules(app):
        serve(Timed(deployed.silos(app), clock, WAYS, work), app, tmp_path / "run", tell=lambda _: None)
    record = RunRecord.read(tmp_path / "run")
    found = devices(record)
    samples = {row["client"]: row["samples"] for row in record.arrivals()}
    speed = [EPOCHS[client + 1] / samples[client] for client in range(3)]
    assert found.columns.keys() == {"seconds_per_sample", "latency_seconds"}
    assert found.columns["seconds_per_sample"] == pytest.approx(speed, rel=0.01)
    assert found.columns["latency_seconds"] == pytest.approx([2 * way for way in WAYS.values()], abs=0.05)
    told = plan(tmp_path / "run").run()
    quantities = {each.name: (each.measured, each.predicted) for each in told.quantities}
    if method == "fedent":  # a simulation counts surveys as part of the jobs, and sends no messages for them
        assert any("a round is predicted to be shorter than it is" in note for note in told.notes)
        return
    assert {*work.asked} == ({True, False} if method == "fedasmu" else set())
    for name in ("seconds", "round_seconds", "job_seconds"):
        measured, predicted = quantities[name]
        assert predicted == pytest.approx(measured, rel=0.05), name
    for each in told.clients:
        assert each.predicted == pytest.approx(each.measured, rel=0.05)
    assert quantities["staleness"][1] == pytest.approx(quantities["staleness"][0], abs=0.25)


def test_a_site_that_comes_late_and_one_that_leaves_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = deployed.project(tmp_path / "app", 3, {"wait_for": 2}, **{**faulty.SMALL, "rounds": 8})
    clock = wound(monkeypatch)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
        transport = Timed({1: nodes[1], 2: nodes[2]}, clock, WAYS, Working())
        clock.wakes.append((123.0, lambda: transport.handlers.update({3: nodes[3]})))
        clock.wakes.append((148.0, lambda: transport.handlers.pop(2) and None))
        serve(transport, app, tmp_path / "run", tell=lambda _: None)
    record = RunRecord.read(tmp_path / "run")
    away = absences(record)
    assert away[0] == []
    ((left, came),) = away[2]
    assert (left, came) == (0.0, pytest.approx(22, abs=5))
    ((left, came),) = away[1]
    assert (left, came) == (pytest.approx(47, abs=2), inf)
    found = devices(record)
    assert "dropout" not in found.columns
    assert any("clients were away" in note for note in found.notes)
    told = plan(tmp_path / "run").run()
    quantities = {each.name: (each.measured, each.predicted) for each in told.quantities}
    simulated = RunRecord.read(tmp_path / "run-replay")
    counts = [Counter(row["client"] for row in each.arrivals()) for each in (record, simulated)]
    assert counts[0] == counts[1] == {0: 8, 1: 4, 2: 5}
    assert quantities["lost"] == (1, 1)
    assert quantities["seconds"][1] == pytest.approx(quantities["seconds"][0], rel=0.15)
