"""With `reduce`, the server gets the mean of the clients' weights, which is formed where they train."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkeel import Experiment, FederatedData, InputError, run
from fedkeel.methods import ClientRule, ServerState, Updates, method, methods, registry
from fedkeel.methods.fedavg import Average
from fedkeel.methods.server import only_mean
from fedkeel.methods.types import exact_sum
from fedkeel.params import FlatModel
from fedkeel.wire.many import Orders
from tests.helpers import federation
from tests.helpers.federation import LR, SIZES, Vector, train, weights
from tests.helpers.methods import small
from tests.helpers.workers import orders, settings, workshop

REDUCES = {
    "fedavg", "fedprox", "fedsam", "moon", "fedbabu", "fedadam", "fedyogi", "fedadagrad", "scaffold", "mimelite",
    "fednorm", "fedagg",
}  # fmt: skip
GRID = 2.0**-36


def by_hand(counts: dict[int, float] | None = None) -> Vector:
    """Four rounds of FedAvg in numpy; clients count by their samples, or by what is said."""
    w = federation.start()
    for round_ in range(1, federation.ROUNDS + 1):
        chosen = federation.chosen(round_)
        mean = np.zeros_like(w)
        for client in chosen:
            mine = w.copy()
            for x, y in federation.batches(round_, client):
                mine -= LR * federation.gradient(mine, x, y)
            size = counts or dict(enumerate(SIZES))
            mean += size[client] / sum(size[each] for each in chosen) * mine
        w = mean
    return w


@pytest.mark.parametrize("executor", federation.EVERY_EXECUTOR)
def test_fedavg_by_hand(executor: str) -> None:
    """Each addend of a mean is rounded by half of 2^-36 at most."""
    by_samples, _ = train("fedavg", executor, reduce=True)
    assert np.abs(weights(by_samples) - by_hand()).max() < 20 * GRID
    alike, _ = train({"name": "fedavg", "weighting": "uniform"}, executor, reduce=True)
    assert np.abs(weights(alike) - by_hand(dict.fromkeys(range(len(SIZES)), 1.0))).max() < 20 * GRID


@pytest.mark.parametrize("algorithm", ["fedavg", pytest.param("fedagg", marks=pytest.mark.slow)])
def test_the_same_bits_whoever_adds_up(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks are those of the other executor each time; the mean does not depend on who trained which of them."""
    stacks = {"kind": "vectorised", "stack": 2, "channels_last": False}
    monkeypatch.setitem(federation.EXECUTORS, "stack 2", stacks)
    for kinds in (("serial", "processes"), ("stack 2", "processes, stack 2")):
        here, there = (train(algorithm, kind, federation.net(4), reduce=True, per_round=5)[0] for kind in kinds)
        assert np.array_equal(weights(here), weights(there))
        assert [row.train_loss for row in here.history] == [row.train_loss for row in there.history]


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.slow) for each in methods()])
def test_every_method_takes_the_mean_or_says_that_it_cannot(name: str) -> None:
    more: dict[str, Any] = {"local": {"momentum": 0.0}, "finetune": {"epochs": 1}}
    model = federation.net(4)
    if name not in REDUCES:
        with pytest.raises(InputError, match=f"reduce cannot be used with {name}, as its server looks at the weights"):
            train(small(name), "serial", model, reduce=True, **more)
        return
    (plain, ends), (reduced, told) = (
        train(small(name), "serial", model, reduce=each, **more) for each in (False, True)
    )  # fmt: skip
    close = 1e-4 if name.startswith("fedad") else 1e-7  # whose steps divide by small numbers
    assert np.abs(weights(plain) - weights(reduced)).max() < close
    assert np.abs(weights(plain) - weights(reduced)).max() < np.abs(weights(plain) - weights_of(model)).max() / 100
    for one, other in zip(ends, told, strict=True):
        assert one.evaluation is not None
        assert other.evaluation is not None
        assert one.evaluation.bytes_up == other.evaluation.bytes_up
        assert [row.weight for row in one.arrivals] == [row.weight for row in other.arrivals]


def weights_of(net: torch.nn.Module) -> Vector:
    return FlatModel(net).w.numpy().astype(np.float64)


class Halved(Average):
    """Looks at the weights of each client, without a word about it."""

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        shares = updates.shares()
        return replace(state, w=shares @ (updates.w / 2)), shares


class Shifted(Average):
    """Does not, and says so."""

    @property
    def needs_only_mean(self) -> Any:
        return self.weighting

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        assert updates.w.shape == (len(updates.samples), 0)
        after, shares = super().aggregate(state, updates)
        return replace(after, w=after.w + 1), shares


def test_a_rule_of_a_user_must_say_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only_mean(Average()) == "samples"
    assert only_mean(Halved()) is None
    assert only_mean(Shifted(weighting="uniform")) == "uniform"
    monkeypatch.setattr(registry, "_METHODS", {**registry.methods()})
    registry.enrol(method("shifted", client=ClientRule, server=Shifted))
    found, _ = train("shifted", reduce=True, rounds=1)
    plain, _ = train("fedavg", reduce=True, rounds=1)
    assert np.allclose(weights(found), weights(plain) + 1, atol=1e-12)


def test_weights_stay_where_they_were_trained() -> None:
    """Of a survey, too: all that comes back are the answers."""
    shop = workshop()
    flat = FlatModel(shop.module)
    share = np.arange(1.0, 8.0) / 28
    made = Orders.of(orders(shop))
    for told in (settings("serial"), settings("vectorised", 3), settings("processes", 3, 2)):
        executor = shop.executor(told)
        apart, together = executor.train(made), executor.train(made.but(share=share))
        assert together.w.shape == (7, 0)
        want = share @ apart.w.double().numpy()
        (mean,) = together.sums.values()
        assert mean.dtype == torch.float64
        assert np.abs(mean.numpy() - want).max() <= 7 * GRID
        assert np.abs(want - flat.w.numpy()).max() > 1e-3
        for name in ("loss", "lr", "steps", "finite", "buffers"):
            assert torch.equal(together.columns[name], apart.columns[name])
        executor.close()


def test_uploads_that_are_refused_are_not_in_the_mean() -> None:
    """The round is summed again without them."""
    x, y = federation.clients()[5]
    parts = [*federation.clients()[:5], (x * 1e30, y)]
    data = FederatedData.from_clients(parts, test=federation.clients()[3])
    found = []
    for reduce in (False, True):
        told = Experiment(
            rounds=2, per_round=6, reduce=reduce, gate={"diverged": "refuse"}, local={"lr": 0.1, "epochs": 2},
            executor={"kind": "serial"}, dtype="float64",
        )  # fmt: skip
        result = run(told, data=data, model=federation.net())
        assert result.summary["uploads_turned_away"] == {"diverged": 2}
        found.append(weights(result))
    assert np.abs(found[0] - found[1]).max() < 20 * GRID


@pytest.mark.parametrize(
    "more",
    [
        {"sampling": "scheme1"},
        {"schedule": {"over_select": 0.5}, "fleet": {"speed_ratio": 5}},
        {"schedule": {"deadline_seconds": 1.0}, "fleet": {"speed_ratio": 9, "dropout": 0.2}},
        {"faults": {"lost_upload": 0.1, "corrupt": 0.2, "twice": 0.1, "old_job": 0.2, "hang": 0.1}},
        {"wire": [{"kind": "clip", "norm": 0.05}, {"kind": "cast", "dtype": "float16"}]},
        {"local": {"optimizer": "adam", "lr": 0.01}},
    ],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.slow
def test_whoever_is_drawn_late_lost_or_cast(more: dict[str, Any]) -> None:
    (plain, _), (reduced, _) = (train("fedavg", reduce=each, per_round=4, rounds=6, **more) for each in (False, True))
    assert np.abs(weights(plain) - weights(reduced)).max() < 100 * GRID
    for name in ("jobs_lost", "bytes_up", "updates", "uploads_turned_away"):
        assert plain.summary[name] == reduced.summary[name]


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"gate": {"max_norm": 3.0}}, "reduce hides the norms of single updates, which gate.max_norm=3 needs"),
        ({"gate": {"min_norm": 0.1}}, "reduce hides the norms of single updates, which gate.min_norm=0.1 needs"),
        ({"evaluate_local": True}, "reduce hides the models of single clients, which evaluate_local tests"),
        ({"algorithm": "fedcm"}, "reduce cannot be used with fedcm, as its server looks at the weights of each client"),
        ({"algorithm": "fedbuff"}, "reduce cannot be used with fedbuff"),
        ({"algorithm": {"name": "fedlga"}}, "reduce cannot be used with fedlga"),
    ],
)
def test_who_needs_single_weights_is_refused(given_: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(reduce=True, **given_)
    assert words in str(caught.value)
    assert "remove" in str(caught.value)


@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from([torch.float32, torch.float64]))
def test_a_weighed_sum_is_exact_up_to_the_grid(seed: int, count: int, dtype: torch.dtype) -> None:
    """Against sums without any rounding, and in any order."""
    rng = np.random.default_rng(seed)
    vectors = torch.from_numpy(rng.normal(size=(count, 3))).to(dtype)
    factors = rng.dirichlet(np.ones(count))
    found = exact_sum(vectors, torch.from_numpy(factors)[:, None])
    for column in range(3):
        want = fsum(float(v) * f for v, f in zip(vectors[:, column], factors, strict=True))
        assert abs(float(found[column]) - want) <= count * GRID / 2 + 1e-15
    mixed = rng.permutation(count)
    assert torch.equal(exact_sum(vectors[mixed], torch.from_numpy(factors[mixed])[:, None]), found)


def test_the_share_goes_with_its_row() -> None:
    shop = workshop()
    made = Orders.of(orders(shop)).but(share=np.arange(7.0))
    assert made.stay
    assert not Orders.of(orders(shop)).stay
    picked = made.pick(np.array([4, 1]))
    assert picked.share is not None
    assert picked.share.tolist() == [4.0, 1.0]
    joined = Orders.joined([made, picked])
    assert joined.share is not None
    assert joined.share.tolist() == [*range(7), 4.0, 1.0]
    assert Orders.joined([made, Orders.of(orders(shop))]).share is None
    assert made.but(share=None).share is None
