"""With `reduce`, the server gets the mean of the clients' weights, which is formed where they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkeel import Experiment, FederatedData, FedkeelError, InputError, run
from fedkeel.deploy.prepared import checked
from fedkeel.local.mean import exact_mean
from fedkeel.methods import ClientRule, Job, Message, Oracle, ServerState, Updates, method, methods, registry
from fedkeel.methods.fedavg import Average
from fedkeel.methods.job import FormedMean
from fedkeel.methods.server import Receipt, View, only_mean
from fedkeel.methods.types import mean_shares
from fedkeel.params import FlatModel, Layout
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Same
from tests.helpers import federation
from tests.helpers.declared import Anything
from tests.helpers.federation import LR, SIZES, Vector, train, weights
from tests.helpers.methods import small
from tests.helpers.workers import orders, settings, workshop

REDUCES = {
    "fedavg", "fedprox", "fedsam", "moon", "fedbabu", "fedadam", "fedyogi", "fedadagrad", "scaffold", "mimelite",
    "fednorm", "fedagg",
}  # fmt: skip


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
    """The mean is as good as that of float64."""
    by_samples, _ = train("fedavg", executor, reduce=True)
    assert np.abs(weights(by_samples) - by_hand()).max() < 1e-14
    alike, _ = train({"name": "fedavg", "weighting": "uniform"}, executor, reduce=True)
    assert np.abs(weights(alike) - by_hand(dict.fromkeys(range(len(SIZES)), 1.0))).max() < 1e-14


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
        with pytest.raises(InputError, match=f"reduce cannot be used with {name}, as its server looks at single"):
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
        after, shares = super().aggregate(state, updates)
        return replace(after, w=after.w + 1), shares


LOOKS: dict[str, Callable[[Updates], Any]] = {
    "halves": lambda updates: updates.shares() @ (updates.w / 2),
    "takes a product": lambda updates: updates.shares() @ updates.w,
    "stacks": lambda updates: torch.cat([updates.start, updates.w]),
    "measures": lambda updates: updates.w.norm(dim=1),
    "takes the change": lambda updates: updates.delta,
    "picks": lambda updates: updates.w[0],
    "counts": lambda updates: len(updates.w),
    "asks for another mean": lambda updates: updates.mean("uniform"),
    "asks for another change": lambda updates: updates.mean_delta("uniform"),
    "changes it": lambda updates: updates.formed.w.mul_(2) if updates.formed else None,
}
LOOK = {"how": ""}


class Liar(Shifted):
    """Says so, but looks at more."""

    @property
    def needs_only_mean(self) -> Any:
        return self.weighting

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        LOOKS[LOOK["how"]](updates)
        return super().aggregate(state, updates)


class Ahead(Shifted):
    """Wants to know what late clients would have sent."""

    @property
    def looks_ahead(self) -> bool:
        return True


class Live(Average):
    """Takes updates in as they come."""

    pace = "stream"

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        raise NotImplementedError


class Typo(Shifted):
    @property
    def needs_only_mean(self) -> Any:
        return "sample"

    aggregate = Shifted.aggregate


@pytest.fixture
def _enrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", {**registry.methods()})
    for kind in (Halved, Shifted, Liar, Ahead, Live, Typo):
        registry.enrol(method(kind.__name__.lower(), client=ClientRule, server=kind))


@pytest.mark.usefixtures("_enrolled")
def test_a_rule_of_a_user_must_say_it_anew() -> None:
    assert only_mean(Average()) == "samples"
    assert only_mean(Halved()) is None
    assert only_mean(Shifted(weighting="uniform")) == "uniform"
    found, _ = train("shifted", reduce=True, rounds=1)
    plain, _ = train("fedavg", reduce=True, rounds=1)
    assert np.allclose(weights(found), weights(plain) + 1, atol=1e-12)


@pytest.mark.usefixtures("_enrolled")
@pytest.mark.parametrize("how", LOOKS)
def test_a_rule_that_looks_at_more_is_told_so(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "looks at the weights of single clients, which reduce does not bring back"
    if how.startswith("asks"):
        words = "says needs_only_mean='samples', and asks for the mean with 'uniform'"
    if how == "changes it":
        words = "aggregate changes tensors in place"
    monkeypatch.setitem(LOOK, "how", how)
    with pytest.raises(FedkeelError, match=words):
        train("liar", reduce=True, rounds=1)


def test_an_unknown_weighting_is_refused() -> None:
    with pytest.raises(FedkeelError, match="asks for the weighting 'sample'; use 'samples' or 'uniform'"):
        mean_shares(torch.ones(3, 1), None, "sample")  # type: ignore[arg-type]


def test_weights_stay_where_they_were_trained() -> None:
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
        assert np.abs(mean.sum(0).numpy() - want).max() <= 1e-14
        assert np.abs(want - flat.w.numpy()).max() > 1e-3
        for name in ("loss", "lr", "steps", "finite", "buffers"):
            assert torch.equal(together.columns[name], apart.columns[name])
        executor.close()


class Asked(ClientRule):
    """Answers a survey by how far it gets in a step."""

    @property
    def survey(self) -> ClientRule:
        return Answering()


class Answering(ClientRule):
    limit = 1

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"far": (w - job.start).norm(dim=1, keepdim=True)}, {}

    def sends(self, layout: Layout, received: Message) -> Anything:
        return Anything()


def test_of_a_survey_only_the_answers_come_back() -> None:
    shop = workshop(rule=Asked())
    made = Orders.of(orders(shop))
    for told in (settings("serial"), settings("vectorised", 3), settings("processes", 3, 2)):
        executor = shop.executor(told)
        answers = executor.train(made.but(survey=Same(True, 7)), 1)
        assert answers.w.shape == (7, 0)
        assert float(answers.messages["far"].min()) > 1e-3
        executor.close()


def test_an_update_that_the_wire_makes_infinite_is_refused() -> None:
    """Weights beyond 65,504 do not fit into float16; the round is summed again without them."""
    x, y = federation.clients()[5]
    parts = [*federation.clients()[:5], (x * 1e3, y)]
    data = FederatedData.from_clients(parts, test=federation.clients()[3])
    found = []
    for reduce in (False, True):
        told = Experiment(
            rounds=1, per_round=6, reduce=reduce, local={"lr": 1000.0, "batch_size": 20}, wire=[{"kind": "cast"}],
            executor={"kind": "serial"}, dtype="float64",
        )  # fmt: skip
        result = run(told, data=data, model=federation.net())
        assert result.summary["uploads_turned_away"] == {"not finite": 1}
        found.append(weights(result))
    assert np.allclose(*found, rtol=1e-14, atol=0)


class Bodiless(ClientRule):
    """Trains everything, and sends the body only."""

    uploads = "body"


def test_weights_that_are_not_sent_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", {**registry.methods()})
    registry.enrol(method("bodiless", client=Bodiless, server=Average))
    plain, reduced = (
        weights(train("bodiless", "serial", federation.net(4), reduce=each)[0]) for each in (False, True)
    )  # fmt: skip
    assert np.abs(plain - reduced).max() < 1e-13
    head = slice(-4 * federation.CLASSES, None)
    assert np.array_equal(reduced[head], weights_of(federation.net(4))[head])


def test_jobs_that_train_one_by_one_are_not_mixed_with_those_of_the_mean() -> None:
    """Clients that get fresh models in mid-training, and uploads that are lost after they were trained."""
    more: dict[str, Any] = {
        "faults": {"lost_upload": 0.3}, "fleet": {"speed_ratio": 8}, "rounds": 12, "per_round": 4,
        "local": {"epochs": 4},
    }  # fmt: skip
    told = {"client": "fedasmu", "server": "fedavg"}
    plain, reduced = (weights(train(told, "serial", federation.net(4), reduce=each, **more)[0]) for each in (0, 1))
    assert np.abs(plain - reduced).max() < 1e-13


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e5])
def test_weights_of_any_size_have_their_mean(scale: float) -> None:
    """Small ones are not lost among many clients, and large ones have the same bits on every executor."""
    rng = np.random.default_rng(0)
    w, n = torch.from_numpy(rng.normal(1, 0.1, size=(20_000, 3)) * scale), rng.integers(1, 9, 20_000)
    shares = torch.from_numpy(n / n.sum())
    found = exact_mean(w, shares)
    for column in range(3):
        want = fsum(float(v) * float(s) for v, s in zip(w[:, column], shares, strict=True))
        assert abs(float(found[:, column].sum()) - want) < 1e-13 + 1e-15 * abs(want)
    mixed = torch.from_numpy(rng.permutation(20_000))
    parts = exact_mean(w[mixed[:7_000]], shares[mixed[:7_000]]) + exact_mean(w[mixed[7_000:]], shares[mixed[7_000:]])
    assert torch.equal(parts, found)


def test_a_small_change_of_float32_weights_is_not_rounded_twice() -> None:
    start = torch.full((2, 1), 1.0)
    formed = FormedMean(torch.tensor([1.0 + 3e-9], dtype=torch.float64), "samples")
    none = torch.zeros(2, 1)
    updates = Updates(start, start, none, none, none, none, {}, FlatModel(federation.net()).layout, formed=formed)
    assert float(updates.mean_delta("samples")) == pytest.approx(3e-9, rel=1e-6)


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
    assert np.abs(found[0] - found[1]).max() < 1e-13


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
    assert np.abs(weights(plain) - weights(reduced)).max() < 1e-13
    for name in ("jobs_lost", "bytes_up", "updates", "uploads_turned_away"):
        assert plain.summary[name] == reduced.summary[name]


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"gate": {"max_norm": 3.0}}, "reduce hides the norms of single updates, which gate.max_norm=3 needs"),
        ({"gate": {"min_norm": 0.1}}, "reduce hides the norms of single updates, which gate.min_norm=0.1 needs"),
        ({"evaluate_local": True}, "reduce hides the models of single clients, which evaluate_local tests"),
        ({"algorithm": "fedcm"}, "reduce cannot be used with fedcm, as its server looks at single clients"),
        ({"algorithm": "fedbuff"}, "reduce cannot be used with fedbuff"),
        ({"algorithm": {"name": "fedlga"}}, "reduce cannot be used with fedlga"),
        ({"algorithm": "ahead"}, "reduce cannot be used with ahead, as its server looks at single clients"),
        ({"algorithm": "live"}, "reduce cannot be used with live, as its server looks at single clients"),
        (
            {"algorithm": "halved"},
            "Halved does not say needs_only_mean beside its aggregate; add that if it looks only",
        ),
        ({"algorithm": "typo"}, "typo must be a property that returns 'samples' or 'uniform'; got 'sample'"),
    ],
)
@pytest.mark.usefixtures("_enrolled")
def test_who_needs_single_weights_is_refused(given_: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(reduce=True, **given_)
    assert words in str(caught.value)
    assert "remove" in str(caught.value) or "must be" in str(caught.value)


def test_real_machines_are_not_for_it() -> None:
    with pytest.raises(InputError, match=r"reduce is for simulations; remove it from experiment\.yaml"):
        checked(Experiment(reduce=True), 3)


@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from([torch.float32, torch.float64]))
def test_a_mean_is_exact(seed: int, count: int, dtype: torch.dtype) -> None:
    """Against sums without any rounding, and in any order."""
    rng = np.random.default_rng(seed)
    vectors = torch.from_numpy(rng.normal(size=(count, 3))).to(dtype)
    shares = torch.from_numpy(rng.dirichlet(np.ones(count)))
    found = exact_mean(vectors, shares)
    for column in range(3):
        want = fsum(float(v) * float(s) for v, s in zip(vectors[:, column], shares, strict=True))
        assert abs(float(found[:, column].sum()) - want) <= 1e-15 + count * 2.0**-60
    mixed = torch.from_numpy(rng.permutation(count))
    assert torch.equal(exact_mean(vectors[mixed], shares[mixed]), found)


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
