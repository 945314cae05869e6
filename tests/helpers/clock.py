"""Runs on the virtual clock with an executor that takes no time: experiments, and all that was seen of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedkeel import Arrival, Experiment, FederatedData, RoundEnd
from fedkeel.local.executor import Score
from fedkeel.params import FlatModel
from fedkeel.runner.simulation import Simulation
from fedkeel.server import events as ev
from fedkeel.wire.orders import Order, Trained
from tests.helpers import federation
from tests.helpers.federation import BATCH, LR, SEED, SIZES, N

MODEL = 8 * federation.FEATURES * federation.CLASSES
"""Bytes of the model."""
ROUNDS = ("barrier", "stream")
NOTES = ("merge_weight", "loss_before", "loss_after", "gamma", "upsilon")


@dataclass
class Instant:
    """An executor that answers at once, with weights made up from the order, and remembers what it was asked."""

    says: tuple[str, ...] = ()
    trained: list[Order] = field(default_factory=list)

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        """One row an order."""
        if limit is None:
            self.trained += orders
        count, longest = len(orders), max(order.epochs for order in orders)
        lr = torch.zeros(count, longest, dtype=torch.float64)
        for row, order in enumerate(orders):
            lr[row, : order.epochs] = order.lr
        columns = {
            "w": torch.stack([_made_up(order) for order in orders]),
            "buffers": torch.zeros(count, 0, dtype=torch.float64),
            "lr": lr,
            "loss": torch.ones(count, dtype=torch.float64),
            "steps": torch.tensor([order.epochs * -(-SIZES[order.client] // BATCH) for order in orders]),
            "finite": torch.ones(count, dtype=torch.bool),
        }
        columns |= {f"message/{name}": torch.full((count, 1), 0.5, dtype=torch.float64) for name in self.says}
        for name in orders[0].kept:
            columns[f"kept/{name}"] = torch.stack([order.kept[name] for order in orders])
        return Trained(columns)

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None) -> Score:
        """Never good enough."""
        return Score(1.0, {"accuracy": 0.5})

    def close(self) -> None:
        """Nothing is open."""


def _made_up(order: Order) -> Tensor:
    noise = torch.sin(torch.arange(len(order.start), dtype=torch.float64) + 7 * order.client + order.epochs)
    return order.start + 0.01 * noise + (0 if order.fresh is None else 0.1 * (order.fresh.w - order.start))


@dataclass(frozen=True)
class Dispatch:
    job: int
    client: int
    time: float
    version: int
    bytes_down: int
    busy: int
    """Devices at work, this one included."""


@dataclass
class Watched:
    """A run and everything that was seen of it."""

    simulation: Simulation
    executor: Instant
    dispatched: list[Dispatch] = field(default_factory=list)
    ends: list[RoundEnd] = field(default_factory=list)
    unfinished: list[dict[str, Any]] = field(default_factory=list)

    @property
    def arrivals(self) -> list[Arrival]:
        return [arrival for end in self.ends for arrival in end.arrivals]


def experiment(algorithm: Any, **settings: Any) -> Experiment:
    """Four rounds of the small federation, unless said otherwise."""
    local = {"epochs": 2, "batch_size": BATCH, "lr": LR, **settings.pop("local", {})}
    common = {"seed": SEED, "rounds": 4, "per_round": 3, "dtype": "float64", "clients": N}
    return Experiment(**{**common, **settings}, algorithm=algorithm, local=local)


def watch(described: Experiment, data: FederatedData | None = None) -> Watched:
    """Run it with an executor that takes no time, and look at the books after every round."""
    merges = described.algorithm.name in ("fedasmu", "fedssmu")
    executor = Instant(NOTES if merges else ())
    data, model = (data or federation.data()).to(torch.float64), FlatModel(federation.net().double())
    running = Simulation(described, data, model, executor)
    seen = Watched(running, executor)
    carry_out = running.world.carry_out

    def watched(command: ev.Command) -> list[ev.Event]:
        busy = len(in_flight(running))
        told = carry_out(command)
        if isinstance(command, ev.Send):
            flights, now = in_flight(running), running.world.now
            for place, (order, down) in enumerate(zip(command.orders, command.down.tolist(), strict=True), 1):
                assert flights[order.client] == (order.job, order.version)
                assert running.core.at_work.sent[order.client].bytes_down == down
                seen.dispatched.append(Dispatch(order.job, order.client, now, order.version, down, busy + place))
        return told

    running.world.carry_out = watched  # type: ignore[method-assign]
    for end in running.rounds():
        seen.ends.append(end)
        _check_books(running)
    seen.unfinished = [vars(row) for end in (*seen.ends, running.rest()) for row in end.unfinished]
    return seen


def in_flight(running: Simulation) -> dict[int, tuple[int, int]]:
    """The job and the version of the model of each client in flight, as the world has them."""
    flights = running.world.flights
    together = [] if flights.together is None else flights.together.rest()
    return {flight.order.client: (flight.order.job, flight.order.version)
            for flight in (*flights.by_client.values(), *together)}  # fmt: skip


def _check_books(running: Simulation) -> None:
    """Nothing is held but of jobs in flight."""
    flights, desk, at_work = in_flight(running), running.world.desk, running.core.at_work
    jobs = {job for job, _ in flights.values()}
    assert desk._ready.keys() <= jobs
    assert desk._results.keys() <= jobs
    assert not desk._ready.keys() & desk._results.keys()
    assert at_work.sent.keys() == flights.keys()
    assert at_work.versions == {client: version for client, (_, version) in flights.items()}
    assert at_work.held == Counter(at_work.versions.values())
    assert np.flatnonzero(~running.world.flights.idle).tolist() == sorted(flights)


METHODS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}],
    "feddyn": [{}],
    "fedasync": [{}, {"staleness_bound": 2}],
    "fedbuff": [{"buffer_size": 2}, {"buffer_size": 4, "rest": "flush"}],
    "port": [{"minimum": 2, "staleness_bound": 1}, {"minimum": 1, "staleness_bound": 1}],
    "fedasmu": [{}, {"slot": "first"}, {"slot": "penultimate", "staleness_bound": 2}],
    "fedssmu": [{}, {"slot": "first"}],
}
ASYNCHRONOUS = ("fedasync", "fedbuff", "port", "fedasmu", "fedssmu")


@st.composite
def experiments(draw: st.DrawFn, methods: Sequence[str] = tuple(METHODS)) -> Experiment:
    """Any fleet and any pace that the method accepts."""
    name = draw(st.sampled_from(methods))
    epochs = draw(st.integers(1, 4))
    fleet: dict[str, Any] = {
        "profile": draw(st.sampled_from(["uniform", "lognormal", "tiers"])),
        "speed_ratio": draw(st.sampled_from([1.0, 2.0, 7.5])),
        "latency_seconds": draw(st.sampled_from([0.0, 0.0, 1.5])),
        "dropout": draw(st.sampled_from([0.0, 0.0, 0.3, 0.8])),
        "availability": draw(st.sampled_from([1.0, 1.0, 0.4, 0.8])),
        "availability_period": draw(st.sampled_from([37.0, 130.0])),
        "uplink_mbps": draw(st.sampled_from([None, 1e-3, 1e-4])),
        "downlink_mbps": draw(st.sampled_from([None, 1e-3, 2e-4])),
    }
    if epochs > 1:
        fleet["rho"] = draw(st.sampled_from([0.0, 0.5]))
        fleet["tau_max"] = draw(st.sampled_from([None, 1]))
    per_round = draw(st.integers(1, N))
    algorithm = {"name": name, **draw(st.sampled_from(METHODS[name]))}
    paces = ["stream", "periodic", "concurrency"] if name in ASYNCHRONOUS else ["barrier"]
    schedule: dict[str, Any] = {"pace": draw(st.sampled_from(paces))}
    if schedule["pace"] in ROUNDS:
        schedule["deadline_seconds"] = draw(st.sampled_from([None, None, 6.0, 14.0]))
        schedule["over_select"] = draw(st.sampled_from([0.0, 0.0, 0.5, 3.0]))
    elif schedule["pace"] == "periodic":
        schedule["trigger_seconds"] = draw(st.sampled_from([1.0, 3.0, 10.0]))
        schedule["busy_share"] = draw(st.sampled_from([0.2, 0.5, 1.0]))
    else:
        schedule["concurrency"] = draw(st.sampled_from([None, 1, 2, 5]))
    return experiment(
        algorithm,
        fleet=fleet,
        schedule=schedule,
        per_round=per_round,
        rounds=draw(st.integers(2, 6)),
        evaluate_every=draw(st.sampled_from([1, 1, 3])),
        limit_seconds=draw(st.sampled_from([400.0, 400.0, 90.0, 20.0, 0.5])),
        local={"epochs": epochs},
    )
