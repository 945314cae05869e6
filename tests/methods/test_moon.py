"""MOON against its rounds written out with autograd; on round 1 its contrast says nothing, later it does."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from fedkeel import Experiment, FederatedData, InputError, run, streams
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods.moon import Contrastive, contrast
from fedkeel.params import FlatModel
from fedkeel.wire.orders import Order
from tests.helpers import federation
from tests.helpers.federation import BATCH, EPOCHS, EVERY_EXECUTOR, LR, ROUNDS, SEED
from tests.helpers.tiers import slow_but

MU, TAU = 2.0, 0.4
MOON = {"name": "moon", "mu": MU, "temperature": TAU}
EVEN = [8, 6, 10]
"""Samples of clients none of whose mini-batches is a single sample, which batch norm could not bear."""
Clients = list[tuple[Tensor, Tensor]]


def federation_clients() -> Clients:
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in federation.clients()]


def even_clients() -> Clients:
    draw = torch.Generator().manual_seed(2)
    return [(torch.randn(n, 3, generator=draw).double(), torch.arange(n) % 2) for n in EVEN]


def even_data() -> FederatedData:
    return FederatedData.from_clients(even_clients(), test=even_clients()[0])


def normed() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def by_hand(
    start: nn.Module, clients: Clients, per_round: int, mu: float = MU, remember: bool = True
) -> tuple[nn.Module, list[float], dict[int, nn.Module]]:
    """(The final model, the mean cross-entropy of each round, each client's own last model)."""
    model = copy.deepcopy(start).double()
    assert isinstance(model, nn.Sequential)
    first, previous, losses = copy.deepcopy(model), dict[int, nn.Sequential](), []
    for round_ in range(1, ROUNDS + 1):
        chosen = streams.generator(SEED, "sampling", round_).choice(len(clients), per_round, replace=False)
        trained, seen = {}, []
        for client in sorted(chosen.tolist()):
            x, y = clients[client]
            mine = copy.deepcopy(model).train()
            sent, own = copy.deepcopy(model).eval(), copy.deepcopy(previous.get(client, first)).eval()
            for epoch in range(EPOCHS):
                order = streams.permutations(streams.keys(SEED, "batches", round_, client, epoch), len(y))[0]
                for part in torch.from_numpy(order).split(BATCH):
                    z = mine[:-1](x[part])
                    loss = cross_entropy(mine[-1](z), y[part])
                    cosines = [(normalize(z) * normalize(each[:-1](x[part]).detach())).sum(1) for each in (sent, own)]
                    contrast = cross_entropy(torch.stack(cosines, 1) / TAU, torch.zeros(len(part), dtype=torch.long))
                    gradient = torch.autograd.grad(loss + mu * contrast, list(mine.parameters()))
                    for p, g in zip(mine.parameters(), gradient, strict=True):
                        p.data -= LR * g
                    seen += [loss.item()] * len(part)
            trained[client] = mine
        previous |= trained if remember else {}
        share = torch.tensor([len(clients[c][1]) for c in trained]).double()
        states = [net.state_dict() for net in trained.values()]
        model.load_state_dict(
            {
                k: torch.tensordot(share / share.sum(), torch.stack([s[k] for s in states]).double(), 1)
                for k in states[0]
            }
        )
        losses.append(float(np.mean(seen)))
    return model, losses, dict(previous)


def pairs(got: nn.Module, expected: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Of weights and statistics; counts of mini-batches are not real numbers, and a mean of them says little."""
    known, real = got.state_dict(), [k for k, v in expected.state_dict().items() if v.is_floating_point()]
    return [(known[name], expected.state_dict()[name]) for name in real]


def assert_same(got: nn.Module, expected: nn.Module) -> None:
    for a, b in pairs(got, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
def test_the_contrast_is_a_cross_entropy_over_two_cosines(temperature: float) -> None:
    z, sent, own = np.random.default_rng(0).normal(size=(3, 5, 4))

    def cosine(a: Any, b: Any) -> float:
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    def brute(z: Any) -> Any:
        near, far = (np.array([*map(cosine, z, other)]) / temperature for other in (sent, own))
        return -np.log(np.exp(near) / (np.exp(near) + np.exp(far)))

    leaf = torch.tensor(z, requires_grad=True)
    values = contrast(leaf, torch.tensor(sent), torch.tensor(own), temperature)
    np.testing.assert_allclose(values.detach().numpy(), brute(z), rtol=1e-12, atol=1e-15)
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    for place in np.ndindex(z.shape):
        nudge = np.zeros_like(z)
        nudge[place] = 1e-6
        slope = (brute(z + nudge).sum() - brute(z - nudge).sum()) / 2e-6
        assert float(gradient[place]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str) -> None:
    result, ends = federation.train(MOON, executor, federation.net(4))
    model, losses, _ = by_hand(federation.net(4), federation_clients(), federation.PER_ROUND)
    assert_same(result.model, model)
    assert [end.train_loss for end in ends] == pytest.approx(losses, abs=1e-12)  # without the contrast


@pytest.mark.slow
def test_what_the_penalty_is_about() -> None:
    """Zero is FedAvg; it takes a client's own model of last time, at first the global one, to make a difference."""
    average, _ = federation.train("fedavg", model=federation.net(4))
    none, _ = federation.train({"name": "moon", "mu": 0}, model=federation.net(4))
    some, _ = federation.train(MOON, model=federation.net(4))
    np.testing.assert_allclose(federation.weights(none), federation.weights(average), rtol=0, atol=1e-12)
    assert np.abs(federation.weights(some) - federation.weights(average)).max() > 1e-3
    forgetful, _, _ = by_hand(federation.net(4), federation_clients(), federation.PER_ROUND, remember=False)
    assert not all(torch.allclose(a, b, atol=1e-3) for a, b in pairs(some.model, forgetful))
    once, _ = federation.train(MOON, model=federation.net(4), rounds=1)
    plain, _ = federation.train("fedavg", model=federation.net(4), rounds=1)
    np.testing.assert_allclose(federation.weights(once), federation.weights(plain), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(["serial", "processes"], "serial"))
def test_batch_norm_by_hand(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sent model contrasts with the statistics that were sent, the client's own with those that it ended with."""
    monkeypatch.setattr(federation, "data", even_data)
    result, _ = federation.train(MOON, executor, normed(), per_round=2)
    model, _, own = by_hand(normed(), even_clients(), 2)
    assert_same(result.model, model)
    statistics = [torch.cat([net[1].running_mean, net[1].running_var]) for net in (*own.values(), model)]  # type: ignore[index]
    assert min(float((a - statistics[-1]).abs().max()) for a in statistics[:-1]) > 1e-3, "they must tell models apart"


class Watched(nn.Module):
    """Writes down in which mode it is called."""

    calls: list[tuple[bool, bool]] = []  # noqa: RUF012

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled()))
        return x


@pytest.mark.parametrize(
    ("layer", "stack"), [(nn.BatchNorm1d(4), 0), (nn.Dropout(0.5), 0), (nn.Identity(), 1)], ids=str
)
def test_other_models_are_frozen_and_leave_the_one_in_training_alone(layer: nn.Module, stack: int) -> None:
    net = nn.Sequential(nn.Linear(3, 4), layer, Watched(), nn.Linear(4, 2)).double()
    data, local = even_data().to(torch.float64), LocalSettings(epochs=EPOCHS, batch_size=BATCH)
    train = Workshop(net, data, Contrastive(), local, SEED).trainer(ExecutorSettings(stack=stack))
    flat = FlatModel(copy.deepcopy(net))
    kept = {"w": flat.w + 1, "buffers": flat.buffers + 1}
    rates = torch.full((EPOCHS,), LR, dtype=torch.float64)
    Watched.calls.clear()
    columns = train([Order(1, 2, 1, EPOCHS, flat.w, flat.buffers, rates, {}, kept)])
    steps = EPOCHS * 3
    assert Watched.calls == [(False, False), (False, False), (True, True)] * steps
    torch.testing.assert_close(columns["kept/w"], columns["w"])
    torch.testing.assert_close(columns["kept/buffers"], columns["buffers"])
    if isinstance(layer, nn.BatchNorm1d):
        views = flat.layout.buffer_views(columns["buffers"][0])
        assert views["1.num_batches_tracked"] == steps
        assert float(views["1.running_mean"].abs().max()) > 1e-3


def test_nothing_more_travels_than_in_fedavg() -> None:
    moon, ends = federation.train(MOON, model=federation.net(4))
    size = 8 * (3 * 4 + 4 * 2)
    assert moon.summary["bytes_up"] == moon.summary["bytes_down"] == ROUNDS * federation.PER_ROUND * size
    assert {(a.bytes_up, a.bytes_down) for end in ends for a in end.arrivals} == {(size, size)}


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        logits: Tensor = self.head(z) + self.head(z.relu())
        return logits


@pytest.mark.parametrize("executor", slow_but(["serial", "stack 3", "processes"], "serial", "stack 3"))
def test_a_head_that_is_called_twice_is_refused(executor: str) -> None:
    with pytest.raises(InputError, match="must call its head once, on the features of its body; got 2 calls"):
        federation.train(MOON, executor, Twice())


@pytest.mark.slow
def test_a_projection_between_body_and_head() -> None:
    """On the paper's network, the features are those of the projection."""
    size = {"train_limit": 60, "test_limit": 50}
    common: dict[str, Any] = {"dataset": size, "clients": 3, "rounds": 2, "executor": "serial"}
    lenet = {"name": "lenet5", "projection": 16}
    moon, average = (run(Experiment(**common, model=lenet, algorithm=name)) for name in ("moon", "fedavg"))
    assert moon.model.head.weight.shape == (10, 16)  # type: ignore[union-attr]
    assert np.isfinite(moon.history[-1].loss)
    assert np.abs(federation.weights(moon) - federation.weights(average)).max() > 1e-5
