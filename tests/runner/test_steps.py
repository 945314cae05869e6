"""Runs whose local work is counted in mini-batches."""

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, Result, RoundEnd, run, streams
from fedkeel.local.build import Workshop
from fedkeel.local.executors.agreement import objection
from fedkeel.local.settings import ExecutorSettings
from fedkeel.methods import methods
from fedkeel.params import FlatModel
from fedkeel.runner.choice import first_orders
from fedkeel.runner.simulation import Simulation
from fedkeel.wire.orders import Order
from fedkeel.world.flights import Flight
from tests.helpers import federation
from tests.helpers.federation import BATCH, LR, SEED, SIZES, N, Vector
from tests.helpers.folders import resumed, same, stopped
from tests.helpers.methods import few, small
from tests.helpers.tiers import slow_but

STEPS = 5
NATIVE = {"kind": "threads", "stack": 3, "workers": 2}
WAYS: dict[str, dict[str, Any]] = {
    "serial": federation.EXECUTORS["serial"],
    "stack": federation.EXECUTORS["stack 3"],
    "native": NATIVE,
}
ROUND = {"seed": SEED, "rounds": 1, "per_round": N, "dtype": "float64"}


def trained(way: str, algorithm: Any = "fedavg", **settings: Any) -> tuple[Result, list[RoundEnd]]:
    """Of the small federation, in steps."""
    ends: list[RoundEnd] = []
    local = {"steps": STEPS, "batch_size": BATCH, "lr": LR, **settings.pop("local", {})}
    described = Experiment(**{**ROUND, **settings}, algorithm=algorithm, executor=WAYS[way], local=local)
    return run(described, data=federation.data(), model=federation.net(), progress=ends.append), ends


def mini_batches(wave: int, client: int, count: int) -> list[tuple[Vector, Any]]:
    """(x, y) of a client's first mini-batches of a wave, as often through its samples as it takes."""
    many = ceil(count / ceil(SIZES[client] / BATCH))
    return [*federation.batches(wave, client, epochs=many)][:count]


def by_hand(start: Vector, wave: int, client: int, count: int) -> Vector:
    w = start
    for x, y in mini_batches(wave, client, count):
        w = w - LR * federation.gradient(w, x, y)
    return w


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_against_a_loop_in_numpy(way: str) -> None:
    """Clients of fewer samples than a mini-batch among them."""
    result, ends = trained(way, rounds=2)
    w = federation.start()
    for wave in (1, 2):
        w = np.average([by_hand(w, wave, client, STEPS) for client in range(N)], axis=0, weights=SIZES)
    np.testing.assert_allclose(federation.weights(result), w, rtol=0, atol=1e-12)
    for end in ends:
        assert {(row.epochs, row.steps, len(row.learning_rates)) for row in end.arrivals} == {(STEPS, STEPS, STEPS)}


def test_time_and_losses_count_the_samples_of_mini_batches() -> None:
    """A job of average size takes the fastest device ten seconds; a round's loss is the mean over what was seen."""
    seen = [sum(len(y) for _, y in mini_batches(1, client, STEPS)) for client in range(N)]
    assert len({seen[c] / SIZES[c] for c in range(N)}) > 2
    local = {"steps": STEPS, "batch_size": BATCH, "lr": LR}
    described = Experiment(**ROUND, algorithm="fedavg", local=local, executor=WAYS["serial"])
    model = FlatModel(federation.net().double())
    data = federation.data().to(torch.float64)
    shop = Workshop(model.module, data, described.algorithm.rules()[0], described.local, SEED)
    simulation = Simulation(described, data, model, shop.executor(ExecutorSettings(kind="serial")))
    (end,) = simulation.rounds()
    rows = [*end.arrivals]
    assert [row.finished - row.began for row in rows] == pytest.approx([10 * s / np.mean(seen) for s in seen])
    assert simulation.core.ledger.samples == sum(seen)
    assert end.train_loss == pytest.approx(np.average([row.train_loss for row in rows], weights=seen), rel=1e-12)


@pytest.mark.parametrize(("samples", "units"), [(7, 9), (12, 6), (3, 4), (9, 1)])
def test_seconds_of_mini_batches_are_those_of_their_samples(samples: int, units: int) -> None:
    """Of mini-batches of four at a second a sample, one after the other; told at the end of one, that is finished."""
    parts = [min(BATCH, samples - first) for first in range(0, samples, BATCH)]
    ends = np.cumsum([parts[number % len(parts)] for number in range(units)]).tolist()
    w = torch.zeros(2)
    order = Order(1, 0, 1, units, w, w[:0], torch.zeros(units), {}, {})
    largest = min(BATCH, samples)
    flight = Flight(order, 0, 0, float(samples), 99, 0, 99, "", 0, an_epoch=samples / largest)
    for number, end in enumerate(ends, start=1):
        assert flight.seconds_of(number) == pytest.approx(end)
        assert flight.done_in(flight.seconds_of(number)) == number
        assert flight.done_in(end - 0.01) == number - 1
        assert flight.done_in(end + 0.01) == number


def test_devices_ask_and_are_interrupted_between_mini_batches() -> None:
    """FedASMU's slots and PORT's interrupts: all times are those of samples seen until then."""

    def seconds(client: int, count: int) -> float:
        """Relative to a whole job of that client."""
        each = [len(y) for _, y in mini_batches(1, client, 9)]
        return sum(each[:count]) / sum(each)

    local, fleet = {"steps": 9}, {"speed_ratio": 5}
    asynchronous = {"rounds": 6, "fleet": fleet, "per_round": 3}
    _, ends = trained("serial", "fedasmu", local=local, **asynchronous)
    asked = [row for end in ends for row in end.arrivals if row.asked is not None]
    assert {row.slot for row in asked if row.merged is not None} == {4}
    for row in asked:
        waited = (row.resumed if row.merged is None else row.merged) - row.asked
        whole = row.finished - row.began - waited
        assert row.asked - row.began == pytest.approx(seconds(row.client, 4) * whole)
    port = {"name": "port", "minimum": 1, "staleness_bound": 1}
    _, ends = trained("serial", port, local=local, **asynchronous, schedule={"concurrency": 5})
    rows = [row for end in ends for row in end.arrivals]
    whole = {row.client: row.finished - row.began for row in rows if row.epochs == 9}
    cut = [row for row in rows if row.epochs < 9 and row.client in whole]
    assert len({row.epochs for row in cut}) > 2
    for row in cut:
        assert row.steps == row.epochs == len(row.learning_rates)
        time = row.finished - row.began
        assert time >= seconds(row.client, row.epochs) * whole[row.client] - 1e-9
        if row.epochs > 1:
            assert time < seconds(row.client, row.epochs + 1) * whole[row.client]


@pytest.mark.parametrize("way", WAYS)
def test_fedlga_completes_what_is_missing_of_mini_batches(way: str) -> None:
    """E_i from the named streams, factors from the paper's formula with S = lr E_i, in numpy."""
    rho, tau_max, asked = 0.5, 3, 6
    rng = streams.generator(SEED, "stragglers", 1)
    count = int(rho * N + rng.random())
    done = np.full(N, asked)
    for client in rng.permutation(N)[:count].tolist():
        drawn = streams.bits(streams.keys(SEED, "partial work", 1, client), 1)[0, 0]
        done[client] -= 1 + int(drawn) % tau_max
    fleet, local = {"rho": rho, "tau_max": tau_max}, {"steps": asked}
    result, ends = trained(way, {"name": "fedlga", "reading": "practical"}, fleet=fleet, local=local)
    assert [row.epochs for row in ends[0].arrivals] == [row.steps for row in ends[0].arrivals] == done.tolist()
    start = federation.start()
    deltas = np.array([by_hand(start, 1, client, done[client]) - start for client in range(N)])
    full = deltas[done == asked].mean(axis=0)
    factors = np.ones(N)
    for client in np.flatnonzero(done < asked):
        added = (deltas[client] @ full - deltas[client] @ deltas[client]) / (LR * done[client]) ** 2
        factors[client] += min(abs(added), (asked - done[client]) / done[client])
    np.testing.assert_allclose(
        federation.weights(result), start + (factors[:, None] * deltas).mean(axis=0), rtol=0, atol=1e-12
    )
    assert [row.weight for row in ends[0].arrivals] == pytest.approx((factors / N).tolist())


# As epochs.

PLAIN = ("fedavg", "fedprox", "scaffold", "fednova", "feddyn", "fedcm", "fedsam", "moon", "fedadam", "asofed", "fedlga")


def even() -> FederatedData:
    """Three mini-batches of four for each client, the last of unequal sizes."""
    rng = np.random.default_rng(4)
    parts = [(rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, n)) for n in (9, 12, 10, 11, 12)]
    return FederatedData.from_clients(parts, test=parts[1])


def weights(result: Result) -> Tensor:
    return FlatModel(result.model).w


def run_even(name: str, way: dict[str, Any], model: nn.Module | None = None, **local: Any) -> Result:
    described = Experiment(
        algorithm=name, rounds=2, per_round=3, seed=SEED, executor=way, finetune={"epochs": 1},
        local={"batch_size": 4, "lr": 0.1, **local}, evaluate_clients=True,
    )  # fmt: skip
    return run(described, data=even(), model=model or federation.net(4))


@pytest.mark.parametrize("momentum", slow_but([0.0, 0.9], 0.0))
@pytest.mark.parametrize("way", slow_but(WAYS, "serial", "native"))
@pytest.mark.parametrize("name", slow_but(PLAIN, "fedavg", "scaffold"))
def test_as_many_steps_as_epochs_have_train_the_same_bits(name: str, way: str, momentum: float) -> None:
    """Fine-tuning counts epochs in both."""
    epochs, steps = (
        run_even(name, WAYS[way], momentum=momentum, **counted) for counted in ({"epochs": 2}, {"steps": 6})
    )
    assert torch.equal(weights(steps), weights(epochs))
    assert [row.train_loss for row in steps.history] == [row.train_loss for row in epochs.history]
    assert steps.summary["virtual_seconds"] == pytest.approx(epochs.summary["virtual_seconds"])
    assert steps.finetuned_accuracy is not None
    assert epochs.finetuned_accuracy is not None
    np.testing.assert_array_equal(steps.finetuned_accuracy, epochs.finetuned_accuracy)
    other = run_even(name, WAYS[way], momentum=momentum, steps=5)
    assert not torch.equal(weights(other), weights(epochs))


def test_dropout_is_drawn_as_in_epochs() -> None:
    def net() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    epochs, steps = (run_even("fedavg", WAYS["serial"], net(), **counted) for counted in ({"epochs": 2}, {"steps": 6}))
    assert torch.equal(weights(steps), weights(epochs))


# Every method.


@pytest.mark.parametrize("name", slow_but(methods(), "fedavg", "fedagg", "fedlga"))
def test_every_method_counts_mini_batches(name: str) -> None:
    """One by one and in stacks, with devices that run out of time."""
    local, found = {"epochs": None, "steps": 4}, []
    for kind in ("serial", "stack 3"):
        result, ends = federation.train(
            small(name), kind, federation.net(4), rounds=2, schedule=few(name), local=local, fleet={"rho": 0.5}
        )
        rows = [row for end in ends for row in end.arrivals]
        assert rows
        assert all(row.steps == row.epochs == len(row.learning_rates) <= 4 for row in rows)
        found.append(FlatModel(result.model).w)
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods()))
def test_every_method_runs_on_native_kernels(name: str) -> None:
    local = {"steps": 4, "batch_size": 4, "lr": 0.05}
    described = Experiment(
        algorithm=small(name), rounds=2, per_round=3, seed=SEED, executor=NATIVE, local=local, schedule=few(name),
        dtype="float64", fleet={"rho": 0.5},
    )  # fmt: skip
    native = run(described, data=federation.data(), model=federation.net(4))
    serial = run(described.replace(executor={"kind": "serial"}), data=federation.data(), model=federation.net(4))
    torch.testing.assert_close(weights(native), weights(serial), rtol=0, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("name", ["fedavg", "fedagg", "asofed"])
def test_fast_ways_are_tried_in_mini_batches(name: str, steps: int) -> None:
    """The trial accepts what is right, in as many steps as an epoch would have, or fewer."""
    data, net = federation.data(), federation.net(4)
    described = Experiment(algorithm=name, local={"steps": steps, "batch_size": 4}, clients=N, per_round=N)
    shop = Workshop(net, data, described.algorithm.rules()[0], described.local, SEED)
    orders = first_orders(described, data, FlatModel(net), shop.executor(ExecutorSettings(kind="serial")))
    for way in (WAYS["stack"], NATIVE):
        assert objection(shop, ExecutorSettings(**way).completed, orders) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("scaffold", {"fleet": {"rho": 0.5}}),
        ("fedasmu", {"fleet": {"speed_ratio": 5, "rho": 0.4, "uplink_mbps": 0.001}}),
        ("port", {"fleet": {"speed_ratio": 9}, "schedule": {"concurrency": 4}}),
    ],
)
def test_a_run_goes_on_bit_for_bit(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    described = Experiment(
        algorithm=small(name), rounds=5, per_round=3, seed=SEED, executor=WAYS["stack"], dtype="float64",
        local={"steps": 6, "batch_size": 4}, **settings,
    )  # fmt: skip
    handed = {"data": federation.data(), "model": federation.net(4)}
    run(described, tmp_path / "whole", **handed)
    stopped(described, tmp_path / "stopped", 2, **handed)
    resumed(tmp_path / "stopped", **handed)
    same(tmp_path / "whole", tmp_path / "stopped")
