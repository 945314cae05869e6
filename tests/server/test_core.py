"""The server's core, driven through every pace by a world without a clock, data or processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import Experiment, FederatedData, FedkeelError
from fedkeel.params import FlatModel
from fedkeel.runner.core import held_classes, new_core
from fedkeel.server import core as core_module
from fedkeel.server import events as ev
from fedkeel.server.core import Core
from fedkeel.server.trips import Trips
from fedkeel.wire.many import Orders
from tests.helpers import federation
from tests.helpers.world import TestWorld, Trip, trained

CLIENTS = 4
SIZES = [2, 4, 6, 8]


def federated() -> FederatedData:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, federation.FEATURES)), rng.integers(0, 2, n)) for n in SIZES]
    return FederatedData.from_clients(clients, test=clients[0]).to(torch.float64)


def server(algorithm: Any, **settings: Any) -> Core:
    known = {"clients": CLIENTS, "per_round": CLIENTS, "rounds": 3, "dtype": "float64", "local": {"epochs": 3}}
    described = Experiment(algorithm=algorithm, **{**known, **settings})
    data = federated()
    return new_core(described, data.sizes, FlatModel(federation.net().double()), held_classes(data))


def kinds(commands: list[ev.Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def moved(world: TestWorld, before: torch.Tensor) -> float:
    """By how much every weight has."""
    by = world.core.model.state.w - before
    assert torch.allclose(by, by[:1].expand_as(by))
    return float(by[0])


COLLECTS = pytest.mark.parametrize("collects", [True, False], ids=["collected", "delivered at once"])


@COLLECTS
def test_a_round_with_a_barrier(collects: bool) -> None:
    world = TestWorld(server("fedavg"), collects)
    w = world.core.model.state.w
    assert kinds(world.wake()) == ["Send"]
    assert sorted(world.orders) == [0, 1, 2, 3]
    for client in (2, 0, 3):
        world.time += 1
        assert world.upload(client) == []
    world.time += 1
    said = world.upload(1)
    assert kinds(said) == ([] if not collects else ["Collect"]) + ["WakeMe", "RoundOver"]
    over = said[-1]
    assert isinstance(over, ev.RoundOver)
    assert (over.round, over.virtual_seconds, over.evaluate) == (1, 4.0, True)
    assert over.arrivals.columns["client"] == [0, 1, 2, 3]  # by job, however they came
    assert moved(world, w) == pytest.approx(np.average([1, 2, 3, 4], weights=SIZES))
    assert (world.core.round, world.core.model.version, len(world.core.at_work)) == (2, 1, 0)


def test_a_run_ends_with_its_last_round() -> None:
    world = TestWorld(server("fedavg", rounds=2))
    for _ in range(2):
        world.wake()
        for client in range(CLIENTS):
            said = world.upload(client)
    assert world.core.over
    assert kinds(said) == ["Collect", "RoundOver"]


def test_too_many_are_chosen_and_the_last_are_not_needed() -> None:
    world = TestWorld(server("fedavg", per_round=2, schedule={"over_select": 1.0}))
    w = world.core.model.state.w
    world.wake()
    world.upload(3)
    said = world.upload(1)
    assert kinds(said) == ["Cancel", "Collect", "WakeMe", "RoundOver"]
    over = said[-1]
    assert isinstance(over, ev.RoundOver)
    assert [(row.client, row.why) for row in over.unfinished] == [(0, "not needed"), (2, "not needed")]
    assert moved(world, w) == pytest.approx(np.average([2, 4], weights=[4, 8]))
    assert world.core.ledger.lost == 2


def test_a_deadline_is_the_worlds_to_keep() -> None:
    world = TestWorld(server("fedavg", schedule={"deadline_seconds": 7.5}))
    w = world.core.model.state.w
    (send,) = world.wake()
    assert isinstance(send, ev.Send)
    assert send.within == 7.5
    world.upload(0)
    for client in (1, 2):
        assert world.tell(world.lost(client, ev.TOO_LATE)) == []
    assert kinds(world.tell(world.lost(3, ev.TOO_LATE))) == ["Collect", "WakeMe", "RoundOver"]
    assert moved(world, w) == pytest.approx(1)


def test_a_round_that_nobody_answers_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "STARVED", 1)
    world = TestWorld(server("fedavg"))
    w = world.core.model.state.w
    world.wake()
    for client in range(CLIENTS):
        said = world.tell(world.lost(client, "dropped out"))
    assert kinds(said) == ["WakeMe", "RoundOver"]
    assert torch.equal(world.core.model.state.w, w)
    assert world.core.model.version == 0
    world.wake()
    for client in range(CLIENTS - 1):
        world.tell(world.lost(client, "dropped out"))
    with pytest.raises(FedkeelError, match="starves: 1 rounds in a row"):
        world.tell(world.lost(CLIENTS - 1, "dropped out"))


@COLLECTS
def test_a_stream_takes_updates_in_at_once_in_rounds(collects: bool) -> None:
    world = TestWorld(server({"name": "fedssmu", "ablation": "FA"}), collects)
    world.wake()
    for number, client in enumerate((3, 1, 0), 1):
        assert kinds(world.upload(client)) == ["Collect"] * collects
        assert world.core.model.version == number
    assert kinds(world.upload(2))[-2:] == ["WakeMe", "RoundOver"]
    assert world.core.round == 2


def test_a_periodic_server_dispatches_by_the_tick() -> None:
    schedule = {"trigger_seconds": 5.0, "busy_share": 0.75}
    world = TestWorld(server("fedasync", per_round=2, schedule=schedule))
    assert world.wake()[1:] == [ev.WakeMe(ev.When.NOW, 5.0)]
    assert len(world.core.at_work) == 2
    world.time = 5.0
    busy = world.core.at_work.sent.keys()
    free = np.array([client not in busy for client in range(CLIENTS)])
    assert world.tell(ev.Wake(5.0, free))[1:] == [ev.WakeMe(ev.When.NOW, 5.0)]
    assert len(world.core.at_work) == 3  # three quarters of all
    world.time = 10.0
    assert world.tell(ev.Wake(10.0, free)) == [ev.WakeMe(ev.When.CHANGE, 5.0)]
    first, second = [*world.orders][:2]
    assert kinds(world.upload(first)) == ["Collect"]
    assert kinds(world.upload(second)) == ["Collect", "RoundOver"]  # two arrivals are called a round
    assert world.core.model.version == 2


def test_a_concurrent_server_fills_every_place_at_once() -> None:
    world = TestWorld(server({"name": "fedbuff", "buffer_size": 2}, per_round=2, schedule={"concurrency": 3}))
    assert kinds(world.wake()) == ["Send"]
    one, two, _ = world.orders
    assert world.upload(one)[1:] == [ev.WakeMe(ev.When.NOW)]
    assert world.core.model.version == 0  # it is in the buffer
    busy = world.core.at_work.sent.keys()
    world.tell(ev.Wake(world.time, np.array([client not in busy for client in range(CLIENTS)])))
    assert len(world.core.at_work) == 3
    assert kinds(world.upload(two)) == ["Collect", "WakeMe", "RoundOver"]
    assert world.core.model.version == 1
    free = np.zeros(CLIENTS, dtype=bool)
    assert world.tell(ev.Wake(world.time, free)) == [ev.WakeMe(ev.When.DEVICE)]  # nobody is on


def test_a_survey_comes_before_the_jobs() -> None:
    world = TestWorld(server("fedent"))
    survey, send = world.wake()
    assert isinstance(survey, ev.Survey)
    assert isinstance(send, ev.Send)
    assert survey.nbytes.tolist() == [16] * CLIENTS  # q and h
    assert [order.job for order in send.orders] == [1, 2, 3, 4]
    assert all("rate" in order.received for order in send.orders)
    model = 8 * federation.FEATURES * federation.CLASSES
    assert send.down.tolist() == [model + 8] * CLIENTS  # and the rate
    assert send.up.tolist() == [model] * CLIENTS
    assert world.core.ledger.bytes_up == 16 * CLIENTS


def test_who_asks_gets_the_newest_model_if_it_is_newer() -> None:
    world = TestWorld(server("fedasmu", schedule={"busy_share": 1.0}))
    world.wake()
    assert world.tell(ev.Asked(1.0, 2, world.orders[2].job)) == [ev.Answer(2)]
    before = world.core.ledger.bytes_down
    world.upload(0)
    (answer,) = world.tell(ev.Asked(2.0, 1, world.orders[1].job))
    assert isinstance(answer, ev.Answer)
    assert answer.fresh is not None
    assert answer.fresh.version == 1
    assert answer.fresh.w is world.core.model.state.w
    assert world.core.ledger.bytes_down == before + answer.nbytes == before + 48
    # It comes back with what it has merged.
    world.orders[1] = replace(world.orders[1], fresh=answer.fresh, slot=2)
    world.upload(1, trip=Trip(0.0, 0.0, 4.0, 4.0, asked=2.0, merged=2.5))
    row = world.core.log.told[1]
    assert (row.client, row.slot, row.fresh_version, row.asked, row.merged) == (1, 2, 1, 2.0, 2.5)
    assert (row.start_version, row.staleness, row.bytes_down) == (0, 1, 48 + 48)


def test_the_stalest_are_interrupted() -> None:
    algorithm = {"name": "port", "minimum": 1, "staleness_bound": 1}
    world = TestWorld(server(algorithm, schedule={"concurrency": CLIENTS}))
    world.wake()
    assert "Interrupt" not in kinds(world.upload(0))
    said = world.upload(1)
    assert ev.Interrupt([2, 3]) in said
    assert kinds(said).index("Interrupt") < kinds(said).index("WakeMe")
    # It sends what it has after one of its epochs.
    world.orders[2] = replace(world.orders[2], epochs=1, lr=world.orders[2].lr[:1])
    world.upload(2)
    row = world.core.log.told[2]
    assert (row.client, row.epochs, row.steps, len(row.learning_rates)) == (2, 1, 1, 1)
    assert world.core.ledger.samples == 3 * SIZES[0] + 3 * SIZES[1] + SIZES[2]


def test_duplicates_old_jobs_and_the_future_are_refused() -> None:
    world = TestWorld(server("fedavg", rounds=5))
    world.wake()
    first = dict(world.orders)
    world.upload(0)
    assert world.again(0, first[0].job, 0) == []
    for client in (1, 2, 3):
        world.upload(client)
    world.wake()
    world.upload(1)
    assert world.again(2, first[2].job, 0) == []  # its next job is expected
    assert world.again(3, world.orders[3].job, 99) == []
    assert world.again(3, world.orders[3].job, 0) == []  # it was sent the model of version 1
    world.tell(world.lost(3, "crashed"))
    assert world.again(3, world.orders[3].job, 1) == []
    for client in (0, 2):
        said = world.upload(client)
    over = [each for each in world.said if isinstance(each, ev.RoundOver)]
    assert said[-1] is over[-1]
    reasons = [[row.reason for row in each.refused] for each in over]
    assert reasons == [["duplicate"], ["duplicate", "from the future", "wrong version", "old job"]]
    assert world.core.ledger.turned_away == {"duplicate": 2, "from the future": 1, "wrong version": 1, "old job": 1}
    assert [len(each.arrivals) for each in over] == [CLIENTS, CLIENTS - 1]


@COLLECTS
def test_what_comes_too_late_changes_nothing(collects: bool) -> None:
    """Messages of real machines cross each other."""
    world = TestWorld(server("fedasync", rounds=1, schedule={"busy_share": 1.0}), collects)
    world.wake()
    first = dict(world.orders)
    world.tell(world.lost(0, "crashed"))
    assert world.tell(world.lost(0, "crashed")) == []
    assert world.tell(ev.Asked(1.0, 0, first[0].job)) == [ev.Answer(0)]
    assert world.upload(0) == []  # with its order, after it was given up
    world.wake()  # everybody who is not at work
    assert world.orders[0].job > first[0].job
    assert world.tell(ev.Lost(1.0, 0, first[0].job, "late news", Trip(0.0, 0.0, 1.0, 1.0))) == []
    assert 0 in world.core.at_work.sent
    assert world.core.ledger.lost == 1
    assert world.core.ledger.turned_away == {"old job": 1}
    for client in (0, 1, 2, 3):
        world.upload(client)
    assert world.core.over
    assert world.wake() == []
    assert world.again(0, first[0].job, 0) == []


def test_a_wake_in_the_middle_of_a_round_dispatches_nobody() -> None:
    world = TestWorld(server("fedavg"))
    world.wake()
    world.upload(1)
    assert world.wake() == []
    assert len(world.core.at_work) == 3


def test_an_upload_that_names_its_job_alone_is_taken_as_it_was_sent() -> None:
    world = TestWorld(server("fedasync", schedule={"busy_share": 1.0}), collects=False)
    world.wake()
    order = world.orders[2]
    trip = Trip(0.0, 0.0, 1.0, 1.0)
    world.tell(ev.Arrived(1.0, 2, order.job, order.version, 8, None, trip, trained(order)))
    assert world.core.model.version == 1
    assert world.core.ledger.bytes_up == 8  # as it came
    bad = trained(world.orders[3])
    broken = replace(bad, columns={**bad.columns, "w": torch.full_like(bad.w, torch.inf)})
    world.tell(ev.Arrived(2.0, 3, world.orders[3].job, 0, 8, None, trip, broken))
    assert world.core.ledger.samples == 3 * SIZES[2] + 3 * SIZES[3]
    assert world.core.ledger.turned_away == {"not finite": 1}


@COLLECTS
def test_what_is_not_finite_is_refused_and_the_others_are_taken_in(collects: bool) -> None:
    world = TestWorld(server("fedavg"), collects)
    w = world.core.model.state.w
    world.wake()
    bad = trained(world.orders[3])
    broken = replace(bad, columns={**bad.columns, "w": torch.full_like(bad.w, torch.inf)})
    assert world.upload(3, broken) == []
    for client in (0, 1, 2):
        said = world.upload(client)
    over = said[-1]
    assert isinstance(over, ev.RoundOver)
    assert [(row.client, row.reason) for row in over.refused] == [(3, "not finite")]
    assert moved(world, w) == pytest.approx(np.average([1, 2, 3], weights=SIZES[:3]))


def test_time_that_is_up_in_mid_round() -> None:
    world = TestWorld(server("fedavg"))
    world.wake()
    world.upload(1)
    (over,) = world.tell(ev.TimeUp(9.0))
    assert isinstance(over, ev.RoundOver)
    assert [(row.client, row.why) for row in over.unfinished] == [(1, "in flight")]
    assert world.core.over
    assert world.core.model.version == 0


def test_a_snapshot_is_all_that_the_core_remembers() -> None:
    """Another core goes on from it in the same way."""
    algorithm = {"name": "fedbuff", "buffer_size": 3}
    one, two = (TestWorld(server(algorithm, per_round=2, schedule={"concurrency": 3})) for _ in range(2))
    one.wake()
    for client in [*one.orders][:2]:
        one.upload(client)
    two.core.restore(one.core.snapshot())
    two.orders = dict(one.orders)
    last = next(iter(one.core.at_work.sent))
    said = [world.upload(last) for world in (one, two)]
    assert kinds(said[0]) == kinds(said[1])
    assert torch.equal(one.core.model.state.w, two.core.model.state.w)
    assert one.core.model.version == two.core.model.version == 1
    free = np.array([client not in one.core.at_work.sent for client in range(CLIENTS)])
    sent = [world.tell(ev.Wake(3.0, free))[0] for world in (one, two)]
    assert [[(o.job, o.client, o.wave) for o in each.orders] for each in sent if isinstance(each, ev.Send)] == [
        [(o.job, o.client, o.wave) for o in sent[0].orders]  # type: ignore[union-attr]
    ] * 2


def test_a_world_answers_before_it_tells_of_anything_else() -> None:
    core = server("fedasync", per_round=2, schedule={"busy_share": 1.0})
    (send, _) = core.on(ev.Wake(0.0))
    assert isinstance(send, ev.Send)
    one, two = (
        ev.Arrived(1.0, order.client, order.job, 0, 8, order, Trip(0.0, 0.0, 1.0, 1.0)) for order in send.orders
    )
    assert kinds(core.on(one)) == ["Collect"]
    with pytest.raises(FedkeelError, match="must answer with Delivered before anything else; got Arrived"):
        core.on(two)


def together(world: TestWorld, clients: list[int], time: float) -> ev.ArrivedTogether:
    """Uploads of these clients, of all that were sent something."""
    orders = [*world.orders.values()]
    trips = Trips.of([Trip(0.0, 0.5, 1.0 + order.client, 2.0 + order.client) for order in orders])
    rows = np.array([[order.client for order in orders].index(client) for client in clients])
    return ev.ArrivedTogether(time, ev.Uploads(Orders.of(orders), trips, [8 + order.client for order in orders]), rows)


def one_by_one(world: TestWorld, event: ev.ArrivedTogether) -> list[ev.Command]:
    """The same in a test's own words."""
    said: list[ev.Command] = []
    for row in event.rows.tolist():
        order = event.uploads.orders[row]
        trip = Trip(0.0, 0.5, 1.0 + order.client, 2.0 + order.client)
        arrived = ev.Arrived(2.0 + order.client, order.client, order.job, order.version, 8 + order.client, order, trip)
        said += world.tell(arrived)
    return said


PARTS = [[[0, 1, 2, 3]], [[3, 1], [0, 2]], [[2], [0, 1], [3]], [[1, 0], [2, 3]]]


@pytest.mark.parametrize("settings", [{}, {"sampling": "scheme1"}, {"per_round": 3, "schedule": {"over_select": 0.3}}])
@pytest.mark.parametrize("parts", PARTS)
def test_uploads_that_come_together_are_those_that_come_one_by_one(
    parts: list[list[int]], settings: dict[str, Any]
) -> None:
    worlds = [TestWorld(server("fedavg", **settings)) for _ in range(2)]
    for number in range(2):
        for world in worlds:
            world.wake()
        for clients in parts:
            there = [client for client in clients if client in worlds[0].core.at_work.sent]
            there = there[: worlds[0].core.patience]
            if not there:
                continue
            said = [
                worlds[0].tell(together(worlds[0], there, 2.0 + there[-1])),
                one_by_one(worlds[1], together(worlds[1], there, 0.0)),
            ]
            assert kinds(said[0]) == kinds(said[1])
        over = [said[-1] for said in (world.said for world in worlds)]
        one, two = over
        assert isinstance(one, ev.RoundOver)
        assert isinstance(two, ev.RoundOver)
        assert one.round == number + 1
        assert one.arrivals.columns == two.arrivals.columns
        assert (one.unfinished, one.train_loss) == (two.unfinished, two.train_loss)
    cores = [world.core for world in worlds]
    assert torch.equal(cores[0].model.state.w, cores[1].model.state.w)
    assert vars(cores[0].ledger) == vars(cores[1].ledger)
    assert cores[0].gate._come.tolist() == cores[1].gate._come.tolist()


def test_what_comes_together_is_refused_one_by_one() -> None:
    """One of three was given up, and one claims a version that it was not sent."""
    world = TestWorld(server("fedavg"))
    world.wake()
    world.tell(world.lost(1, "crashed"))
    world.orders[2] = replace(world.orders[2], version=5)
    assert world.tell(together(world, [0, 1, 2], 4.0)) == []
    rows = [(row.client, row.reason, row.arrived, row.bytes_up) for row in world.core.log.refused]
    assert rows == [(1, "old job", 3.0, 9), (2, "from the future", 4.0, 10)]
    assert world.core.ledger.bytes_up == 9 + 10  # the first one waits for the last
    over = world.upload(3)[-1]
    assert isinstance(over, ev.RoundOver)
    assert over.arrivals.columns["client"] == [0, 3]


def test_a_world_tells_of_no_more_uploads_than_the_server_has_patience_for() -> None:
    world = TestWorld(server("fedavg", per_round=2, schedule={"over_select": 1.0}))
    world.wake()
    assert world.core.patience == 2
    with pytest.raises(FedkeelError, match="must report at most 2 uploads together; got 3"):
        world.tell(together(world, [0, 1, 2], 4.0))
    stream = TestWorld(server({"name": "fedssmu", "ablation": "FA"}))
    stream.wake()
    assert stream.core.patience == 1
    assert kinds(stream.tell(together(stream, [2], 4.0))) == ["Collect"]
    assert stream.core.model.version == 1


def test_weights_that_do_not_come_back_are_not_taken_in() -> None:
    """A rule that uploads the body alone, and trains all."""
    core = server("fedavg")
    body = torch.arange(6) < 3
    core.model._sent = body
    world = TestWorld(core)
    w = core.model.state.w
    world.wake()
    for client in range(CLIENTS):
        world.upload(client)
    assert bool(((core.model.state.w - w).abs() > 1e-9).eq(body).all())
