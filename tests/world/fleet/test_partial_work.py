"""Devices that run out of time: how many, by how much, and what the rest of a run makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from fedkeel import Experiment, InputError, RoundEnd, streams
from fedkeel.methods import methods
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.fleet.settings import FleetSettings
from tests.helpers import federation
from tests.helpers.commands import fedkeel
from tests.helpers.federation import BATCH, EXECUTORS, LR, SEED, SIZES, N, Vector

FORTY = np.arange(100, 140)
ROUNDS = 400


def done(asked: int, clients: NDArray[np.int64] = FORTY, seed: int = 0, round: int = 1, **fleet: Any) -> list[int]:
    devices = Fleet.of(FleetSettings(**fleet), np.ones(140, dtype=np.int64), asked, seed)
    epochs: list[int] = devices.epochs_done(asked, clients, seed, round).tolist()
    return epochs


def predicted(asked: int, clients: NDArray[np.int64], seed: int, round: int, rho: float, tau_max: int) -> list[int]:
    """From the named streams, device by device."""
    rng = streams.generator(seed, "stragglers", round)
    exact = rho * len(clients)
    count = int(exact) + (rng.random() >= 1 - exact % 1)
    late = {int(clients[place]) for place in rng.permutation(len(clients))[:count]}

    def missed(client: int) -> int:
        return 1 + int(streams.bits(streams.keys(seed, "partial work", round, client), 1)[0, 0]) % tau_max

    return [asked - missed(client) if client in late else asked for client in clients.tolist()]


@pytest.mark.parametrize("rho", [0.05, 0.25, 0.5, 0.7, 0.95, 1.0])
def test_a_whole_number_of_stragglers_is_met_exactly(rho: float) -> None:
    for round_ in range(1, 60):
        assert sum(epochs < 5 for epochs in done(5, round=round_, rho=rho)) == round(40 * rho)


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "count"), [(0.3, 7), (0.05, 5), (0.9, 3), (0.5, 1)])
def test_otherwise_it_is_rounded_to_a_neighbour_and_right_on_average(rho: float, count: int) -> None:
    clients = np.arange(count)
    late = [sum(e < 5 for e in done(5, clients, round=round_, rho=rho)) for round_ in range(ROUNDS)]
    exact = rho * count
    assert {*late} == {int(exact), int(exact) + 1}
    spread = np.sqrt((exact % 1) * (1 - exact % 1) / ROUNDS)
    assert abs(np.mean(late) - exact) < 3.5 * spread


@pytest.mark.parametrize(("asked", "tau_max", "least"), [(5, None, 1), (5, 4, 1), (5, 3, 2), (10, 1, 9), (2, None, 1)])
def test_epochs_missing_are_uniform(asked: int, tau_max: int | None, least: int) -> None:
    drawn = [e for round_ in range(60) for e in done(asked, round=round_, rho=1.0, tau_max=tau_max)]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [*range(least, asked)]
    assert len(values) == 1 or stats.chisquare(counts).pvalue > 1e-3


def test_every_device_is_late_as_often_as_any_other() -> None:
    late = np.array([[e < 5 for e in done(5, round=round_, rho=0.3)] for round_ in range(ROUNDS)])
    counts = late.sum(axis=0)
    # Twelve of forty without replacement: each count is binomial, and they sum to a constant.
    chi = ((counts - 0.3 * ROUNDS) ** 2).sum() / (ROUNDS * 0.3 * 0.7) * 39 / 40
    assert stats.chi2.sf(chi, 39) > 1e-3
    assert stats.chi2.cdf(chi, 39) > 1e-3


@pytest.mark.parametrize("fleet", [{"rho": 0.0}, {"rho": 0.0, "tau_max": 3}, {"rho": 1.0, "tau_max": 0}, {}])
def test_without_a_share_or_without_epochs_to_miss_all_work_is_done(fleet: dict[str, Any]) -> None:
    assert done(5, **fleet) == [5] * 40


@pytest.mark.parametrize(("rho", "tau_max"), [(0.4, 3), (0.37, 6), (1.0, 2)])
def test_who_misses_how_much_is_what_the_named_streams_say(rho: float, tau_max: int) -> None:
    for seed, round_ in [(0, 1), (0, 2), (7, 1)]:
        expected = predicted(7, FORTY, seed, round_, rho, tau_max)
        assert done(7, FORTY, seed, round_, rho=rho, tau_max=tau_max) == expected
    assert done(7, seed=0, round=1, rho=rho) != done(7, seed=1, round=1, rho=rho) != done(7, seed=1, round=2, rho=rho)


def test_what_a_device_misses_does_not_depend_on_who_else_takes_part() -> None:
    """Where all are late, it is a matter of seed, round and device; so it is among those late in any round."""
    alone = {client: done(9, np.array([client]), seed=3, round=4, rho=1.0)[0] for client in FORTY.tolist()}
    assert [*alone.values()] == done(9, seed=3, round=4, rho=1.0)
    backwards = done(9, FORTY[::-1], seed=3, round=4, rho=1.0)
    assert [*alone.values()] == backwards[::-1]
    some = done(9, FORTY[5:25], seed=3, round=4, rho=0.5)
    late = [(client, epochs) for client, epochs in zip(FORTY[5:25].tolist(), some, strict=True) if epochs < 9]
    assert len(late) == 10
    assert all(alone[client] == epochs for client, epochs in late)


ERRORS: list[tuple[dict[str, Any], list[str]]] = [
    ({"local.epochs": 5, "fleet.tau_max": 5}, ["fleet.tau_max must be at most 4", "local.epochs=5", "got 5"]),
    ({"local.epochs": 3, "fleet.tau_max": 7, "fleet.rho": 0.5}, ["fleet.tau_max must be at most 2", "got 7"]),
    ({"fleet.rho": 0.25}, ["fleet.rho=0.25 needs jobs of at least 2 epochs, so that a device can miss one; "]),
    ({"local.epochs": 2, "fleet.rho": 1.5}, ["fleet.rho must be at most 1; got 1.5"]),
    ({"local.epochs": 2, "fleet.rho": -0.1}, ["fleet.rho must be at least 0; got -0.1"]),
    ({"local.epochs": 2, "fleet.tau_max": -1}, ["fleet.tau_max must be at least 0; got -1"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "words"), ERRORS)
def test_impossible_stragglers_are_refused_by_name(settings: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    overrides = [f"{key}={value}" for key, value in settings.items()]
    with pytest.raises(InputError) as told:
        Experiment.load(overrides=overrides)
    shown = fedkeel("show", *overrides, cwd=tmp_path)
    assert shown.returncode == 2
    for word in words:
        assert word in str(told.value)
        assert word in " ".join(shown.stderr.split())


@pytest.mark.parametrize("settings", [["local.epochs=5", "fleet.tau_max=4", "fleet.rho=1"], ["fleet.tau_max=0"]])
def test_the_largest_possible_values_are_accepted(settings: list[str], tmp_path: Path) -> None:
    assert fedkeel("show", *settings, cwd=tmp_path).returncode == 0


def work(ends: list[RoundEnd], column: str) -> list[Any]:
    return [value for end in ends for value in end.arrivals.columns[column]]


@pytest.mark.slow
def test_every_executor_draws_the_same_and_records_the_work_really_done() -> None:
    settings: dict[str, Any] = {"per_round": 4, "fleet": {"rho": 0.6}, "local": {"epochs": 5, "lr_decay": 0.5}}
    runs = {kind: federation.train("fedavg", kind, **settings) for kind in EXECUTORS}
    result, ends = runs["serial"]
    for _, others in runs.values():
        for column in ("client", "epochs", "steps", "samples", "learning_rates", "arrived"):
            assert work(others, column) == work(ends, column)
    for end in ends:
        clients, epochs = (np.array(end.arrivals.columns[name]) for name in ("client", "epochs"))
        assert clients.tolist() == federation.chosen(end.round, 4)
        assert epochs.tolist() == predicted(5, clients, SEED, end.round, 0.6, 4)
    for arrival in (arrival for end in ends for arrival in end.arrivals):
        assert arrival.steps == arrival.epochs * -(-SIZES[arrival.client] // BATCH)
        assert arrival.learning_rates == pytest.approx([LR * 0.5 ** (arrival.round - 1)] * arrival.epochs)
        # Who runs out of time has used it: a full job's seconds.
        assert arrival.arrived - arrival.dispatched == pytest.approx(10 * SIZES[arrival.client] / np.mean(SIZES))
    seen = sum(a.samples * a.epochs for end in ends for a in end.arrivals)
    assert seen < 5 * sum(work(ends, "samples"))
    assert {other.simulation.core.ledger.samples for other, _ in runs.values()} == {seen}
    assert result.summary["updates"] == 4 * federation.ROUNDS


def test_the_training_loss_is_that_of_all_samples_seen() -> None:
    _, ends = federation.train("fedavg", rounds=1, per_round=N, fleet={"rho": 0.5}, local={"epochs": 6})
    losses: list[float] = []
    for client, epochs in zip(*(ends[0].arrivals.columns[name] for name in ("client", "epochs")), strict=True):
        w = federation.start()
        own: list[float] = []
        for x, y in federation.batches(1, client, epochs):
            own += sample_losses(w, x, y)
            w = w - LR * federation.gradient(w, x, y)
        assert ends[0].arrivals[client].train_loss == pytest.approx(np.mean(own), abs=1e-12)
        losses += own
    assert ends[0].train_loss == pytest.approx(np.mean(losses), abs=1e-12)


def sample_losses(w: Vector, x: Vector, y: Any) -> list[float]:
    logits = x @ w.reshape(federation.CLASSES, federation.FEATURES).T
    own: list[float] = (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]).tolist()
    return own


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods()))
def test_every_method_bears_stragglers_alone_and_in_stacks(name: str) -> None:
    settings: dict[str, Any] = {"rounds": 2, "per_round": 5, "fleet": {"rho": 0.5}, "local": {"epochs": 3}}
    runs = {kind: federation.train(name, kind, federation.net(4), **settings) for kind in ("serial", "stack 3")}
    (alone, ends), (stacked, others) = runs.values()
    assert {*work(ends, "epochs")} == {1, 2, 3}
    assert work(ends, "epochs") == work(others, "epochs")
    np.testing.assert_allclose(federation.weights(stacked), federation.weights(alone), rtol=0, atol=1e-9)
    models = [[result.client_model(client) for client in range(N)] for result in (stacked, alone)]
    for ours, theirs in zip(*models, strict=True):
        for got, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(got.detach(), expected.detach(), rtol=0, atol=1e-9)
    for column in ("learning_rates", "weight", "train_loss"):
        for got, expected in zip(work(others, column), work(ends, column), strict=True):
            # An arrival that waits to be used has no weight.
            np.testing.assert_allclose(
                np.array(got, dtype=float), np.array(expected, dtype=float), rtol=1e-9, atol=1e-9
            )
    assert all(
        len(rates) == done for rates, done in zip(work(ends, "learning_rates"), work(ends, "epochs"), strict=True)
    )
