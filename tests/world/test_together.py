"""Jobs that travel together: nothing differs from jobs that travel one by one, on any fleet and with any faults."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel import Experiment
from fedkeel.errors import FedkeelError
from fedkeel.params import FlatModel
from fedkeel.runner.simulation import Simulation
from fedkeel.server import events as ev
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Order, Same
from fedkeel.world.flights import ARRIVES, BEGINS
from fedkeel.world.together import Departure, Together
from tests.helpers import federation
from tests.helpers.clock import Instant, experiment, experiments

CLIENTS = 8


def departure(finished: list[float], upload: float) -> Departure:
    count, w = len(finished), torch.zeros(2)
    orders = Orders.of([Order(10 + c, c, 1, 1, w, w[:0], w[:1], {}, {}, wave=1) for c in range(count)])
    zeros, never = np.zeros(count), np.full(count, np.inf)
    ends = np.array(finished), zeros + upload
    nothing = Same("", count)
    return Departure(
        orders,
        0.0,
        zeros,
        zeros + 1,
        *ends,
        never,
        nothing,
        np.arange(count),
        nothing,
        zeros,
        Same(0, count),
        zeros + 1,
    )


def expected(finished: list[float], upload: float, others: list[tuple[float, tuple[int, ...]]], most: list[int],
             limit: float) -> list[list[int]]:  # fmt: skip
    """Clients that are told of together, from a queue in which each of them is an event of its own."""
    queue: list[tuple[float, tuple[int, ...], int | None]] = [(time, rank, None) for time, rank in others]
    queue += [(time + upload, (ARRIVES, client), client) for client, time in enumerate(finished)]
    heapq.heapify(queue)
    told: list[list[int]] = []
    going = False
    while queue and queue[0][0] <= limit:
        client = heapq.heappop(queue)[2]
        if client is None:
            going = False
        elif going and len(told[-1]) < most[(len(told) - 1) % len(most)]:
            told[-1].append(client)
        else:
            told.append([client])
            going = True
    return told


@given(st.data())
def test_who_arrives_together(data: st.DataObject) -> None:
    few = st.sampled_from([1.0, 2.0, 2.5, 4.0])
    finished = data.draw(st.lists(few, min_size=1, max_size=CLIENTS))
    ranks = st.tuples(st.just(ARRIVES), st.integers(0, CLIENTS).map(lambda c: c + CLIENTS * (c % 2))) | st.just(
        (BEGINS,)
    )
    mine = {(time, (ARRIVES, client)) for time in (1.0, 2.0, 2.5, 4.0) for client in range(len(finished))}
    others = sorted({*data.draw(st.lists(st.tuples(few, ranks), max_size=4))} - mine)
    most = data.draw(st.lists(st.integers(1, CLIENTS), min_size=1, max_size=3))
    limit = data.draw(st.sampled_from([0.5, 2.0, 3.0, 9.0]))
    together = Together(departure(finished, upload := data.draw(st.sampled_from([0.0, 0.5]))))
    told, rest = [], [*others]
    while len(together) and together.next[0] <= limit:
        time, client, job = together.next
        assert job == 10 + client
        while rest and rest[0] < (time, (ARRIVES, client)):
            rest.pop(0)
        now, rows = together.take(most[len(told) % len(most)], limit, rest[0] if rest else None)
        told.append(rows.tolist())
        assert now == finished[told[-1][-1]] + upload
    assert told == expected(finished, upload, others, most, limit)
    here = {client for each in told for client in each}
    assert {flight.order.client for flight in together.rest()} == set(range(len(finished))) - here


def everything(described: Experiment, alone: bool) -> Any:
    """All that is told of a run and left by it; how many events told of several uploads."""
    data, model = federation.data().to(torch.float64), FlatModel(federation.net().double())
    running = Simulation(described, data, model, Instant())
    many, on = 0, running.core.on

    def counted(event: ev.Event) -> list[ev.Command]:
        nonlocal many
        many += isinstance(event, ev.ArrivedTogether) and len(event.rows) > 1
        return on(event)

    running.core.on = counted  # type: ignore[method-assign]
    told: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(Departure, "alone", property(lambda jobs: np.ones(len(jobs.orders), dtype=np.bool_)))
        try:
            for end in running.rounds():
                told += [end.round, end.virtual_seconds, end.train_loss, [*end.arrivals], end.unfinished, end.refused]
        except FedkeelError as error:
            told.append(str(error))
        rest = running.rest()
    told += [rest.unfinished, rest.refused, vars(running.core.ledger), running.world.now, running.core.model.version]
    told += [running.core.model.state.w.tolist(), running.core.gate._come.tolist(), sorted(running.world.desk.kept)]
    return told, many


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_a_run_is_the_same_with_jobs_one_by_one(data: st.DataObject) -> None:
    described = data.draw(experiments(methods=("fedavg", "feddyn")))
    chance = st.sampled_from([0.0, 0.0, 0.1])
    faults = {name: data.draw(chance) for name in ("hang", "lost_upload", "twice", "old_job", "leave", "corrupt")}
    described = described.replace(faults={**faults, "hang_seconds": 20.0, "again_seconds": 0.5})
    assert everything(described, alone=False)[0] == everything(described, alone=True)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fleet": {"speed_ratio": 7.5}},
        {"per_round": 2, "schedule": {"over_select": 1.5}, "fleet": {"speed_ratio": 3}},
        {"schedule": {"deadline_seconds": 14.0}, "fleet": {"speed_ratio": 4}},
        {"fleet": {"dropout": 0.3}, "faults": {"twice": 0.3}},
        {"limit_seconds": 25.0, "fleet": {"speed_ratio": 4}, "rounds": 9},
    ],
)
def test_some_runs_are_the_same_with_jobs_one_by_one(settings: dict[str, Any]) -> None:
    described = experiment("fedavg", **{"per_round": federation.N, **settings})
    together, many = everything(described, alone=False)
    one_by_one, none = everything(described, alone=True)
    assert together == one_by_one
    assert many > none == 0
