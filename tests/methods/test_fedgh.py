"""FedGH against its rounds written out with torch.optim: private bodies, class means, a header trained pair by pair."""

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, InputError, Result, run, streams
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods import ServerState, Updates
from fedkeel.methods.fedgh import HeaderTraining, PrivateBody
from fedkeel.models.classifier import Classifier
from fedkeel.params import FlatModel, Layout
from fedkeel.wire.orders import Order
from tests.helpers import federation
from tests.helpers.federation import BATCH, EPOCHS, EVERY_EXECUTOR, LR, ROUNDS, SEED
from tests.helpers.tiers import slow_but

Clients = list[tuple[Tensor, Tensor]]


def points() -> tuple[Tensor, Tensor]:
    """A test set of many points with labels at random: hardly a weight can move without changing the accuracy."""
    draw = torch.Generator().manual_seed(4)
    return torch.randn(2000, 3, generator=draw).double(), torch.randint(2, (2000,), generator=draw)


def uneven() -> Clients:
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in federation.clients()]


def even() -> Clients:
    """No mini-batch is a single sample, which batch norm could not bear."""
    draw = torch.Generator().manual_seed(2)
    return [(torch.randn(n, 3, generator=draw).double(), torch.arange(n) % 2) for n in (8, 6, 10, 4)]


def biased(between: nn.Module | None = None, classes: int = 2) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), between or nn.Identity(), nn.ReLU(), nn.Linear(4, classes))


def split(net: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """(The body, the header); a bare linear layer is all header."""
    body, header = (net[:-1], net[-1]) if isinstance(net, nn.Sequential) else (nn.Identity(), net)
    assert isinstance(header, nn.Linear)
    return body, header


def by_hand(
    start: nn.Module, clients: Clients, server: Any = None, local: Any = None, rounds: int = ROUNDS
) -> tuple[nn.Linear, list[nn.Module], list[float]]:
    """(The header, every client's own model, the accuracy after each round)."""
    server, local = server or {}, local or {}
    own = [copy.deepcopy(start).double() for _ in clients]
    header, accuracy = copy.deepcopy(split(own[0])[1]), []
    plain = {key: local.get(key, 0) for key in ("momentum", "weight_decay")}
    for round_ in range(1, rounds + 1):
        rate = LR * local.get("lr_decay", 1) ** (round_ - 1)
        chosen = streams.generator(SEED, "sampling", round_).choice(len(clients), federation.PER_ROUND, replace=False)
        pairs: list[tuple[Tensor, int]] = []
        for client in sorted(chosen.tolist()):
            (x, y), net = clients[client], own[client].train()
            body, head = split(net)
            head.load_state_dict(header.state_dict())
            optimiser = torch.optim.SGD(net.parameters(), lr=rate, **plain)
            for epoch in range(EPOCHS):
                order = streams.permutations(streams.keys(SEED, "batches", round_, client, epoch), len(y))[0]
                for part in torch.from_numpy(order).split(BATCH):
                    optimiser.zero_grad()
                    cross_entropy(net(x[part]), y[part]).backward()
                    optimiser.step()
            z = body.eval()(x).detach()
            pairs += [(z[y == label].mean(0), label) for label in sorted({*y.tolist()})]
        optimiser = torch.optim.SGD(header.parameters(), lr=server.get("header_lr") or rate)
        for mean, label in pairs if server.get("train_header", True) else []:
            optimiser.zero_grad()
            cross_entropy(header(mean)[None], torch.tensor([label])).backward()
            optimiser.step()
        accuracy.append(float(np.mean([own_share(net.eval(), client, clients) for client, net in enumerate(own)])))
    return header, own, accuracy


def own_share(net: nn.Module, client: int, clients: Clients) -> float:
    """The accuracy on the client's own test samples."""
    x, y = (each[federated(clients).test_share(client, SEED)] for each in points())
    return float((net(x).argmax(1) == y).double().mean())


def federated(clients: Clients) -> FederatedData:
    return FederatedData.from_clients(clients, test=points())


def check(result: Result, net: nn.Module, clients: Clients, *how: Any) -> None:
    """A run against the same by hand: the header, every client's model and its statistics, and every accuracy."""
    header, own, accuracy = by_hand(net, clients, *how)
    assert_same(split(result.model)[1], header)
    for client, expected in enumerate(own):
        assert_same(result.client_model(client), expected)
    assert [e.accuracy for e in result.history] == pytest.approx(accuracy, abs=1e-12)
    assert result.evaluate_clients().mean() == pytest.approx(accuracy[-1], abs=1e-12)


def assert_same(got: nn.Module, expected: nn.Module) -> None:
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(got.state_dict()[name], tensor, rtol=0, atol=1e-12)


@pytest.fixture(autouse=True)
def _larger_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "data", lambda: federated(uneven()))


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str) -> None:
    result, _ = federation.train("fedgh", executor, federation.net(4))
    check(result, federation.net(4), uneven())
    assert result.summary["tested"] == "clients' own models"
    assert result.summary["client_accuracy_estimated"]["mean"] == pytest.approx(result.accuracy, abs=1e-12)


ROUGH = {"momentum": 0.9, "weight_decay": 0.1, "lr_decay": 0.8}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
@pytest.mark.parametrize("server", [{}, {"header_lr": 0.7}, {"train_header": False}], ids=str)
@pytest.mark.parametrize("net", [biased(), federation.net()], ids=["with bias", "bare"])
def test_settings_by_hand(net: nn.Module, server: Any, executor: str) -> None:
    """A bare linear layer is all header: its body is the identity, and class means are means of samples."""
    result, _ = federation.train({"name": "fedgh", **server}, executor, copy.deepcopy(net), local=ROUGH)
    check(result, net, uneven(), server, ROUGH)
    moved = (split(result.model)[1].weight - split(net)[1].weight).abs().max().item()
    assert moved > 1e-2 if server.get("train_header", True) else moved == 0


def test_absentees_keep_their_models() -> None:
    result, _ = federation.train("fedgh", "stack 3", federation.net(4), rounds=1)
    for client in range(federation.N):
        same = torch.equal(result.client_model(client)[0].weight, federation.net(4)[0].weight.double())  # type: ignore[index]
        assert same == (client not in federation.chosen(1))


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(["serial", "processes"], "serial"))
def test_batch_norm_statistics_are_private(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "data", lambda: federated(even()))
    result, ends = federation.train("fedgh", executor, biased(nn.BatchNorm1d(4)))
    check(result, biased(nn.BatchNorm1d(4)), even())
    assert_same(result.model[1], biased(nn.BatchNorm1d(4))[1].double())  # type: ignore[index]
    assert {a.bytes_down for end in ends for a in end.arrivals} == {8 * (4 * 2 + 2)}


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(["serial", "stack 3", "processes"], "serial", "stack 3"))
def test_the_header_goes_down_and_the_means_of_classes_go_up(executor: str) -> None:
    result, ends = federation.train("fedgh", executor, federation.net(4))
    rows = [(arrival, len({*uneven()[arrival.client][1].tolist()})) for end in ends for arrival in end.arrivals]
    assert {held for _, held in rows} == {1, 2}
    for arrival, held in rows:
        assert (arrival.bytes_down, arrival.bytes_up) == (8 * 4 * 2, held * (8 * 4 + 8))
    assert result.summary["bytes_down"] == len(rows) * 8 * 4 * 2
    assert result.summary["bytes_up"] == sum(held for _, held in rows) * (8 * 4 + 8)


def test_the_server_never_looks_at_weights() -> None:
    """Nor at means of classes that a client does not hold."""
    net = biased().double()
    layout, flat = Layout.of(net), FlatModel(copy.deepcopy(net))
    means, held = torch.randn(2, 2, 4, dtype=torch.float64), torch.tensor([[True, True], [False, True]])
    means[1, 0] = torch.nan
    unknown = torch.full((2, layout.size), torch.nan, dtype=torch.float64)
    ones, rates = torch.ones(2, 1, dtype=torch.long), torch.full((2, 1), LR, dtype=torch.float64)
    updates = Updates(unknown, unknown, ones, ones, ones, rates, {"means": means, "held": held}, layout)
    state, _ = HeaderTraining().aggregate(ServerState(flat.w.clone()), updates)
    optimiser = torch.optim.SGD(net[-1].parameters(), lr=LR)
    for client, label in [(0, 0), (0, 1), (1, 1)]:
        optimiser.zero_grad()
        cross_entropy(net[-1](means[client, label])[None], torch.tensor([label])).backward()
        optimiser.step()
    torch.testing.assert_close(state.w, FlatModel(net).w, rtol=0, atol=1e-12)


def test_class_means_of_ragged_stacks() -> None:
    draw, sizes = torch.Generator().manual_seed(6), (9, 1, 17, 4)
    clients = [(torch.randn(n, 3, generator=draw), torch.randint(5, (n,), generator=draw)) for n in sizes]
    data = FederatedData.from_clients(clients, test=(torch.zeros(1, 3), torch.tensor([4]))).to(torch.float64)
    net, local = biased(classes=5).double(), LocalSettings(epochs=EPOCHS, batch_size=BATCH)
    shop, flat = Workshop(net, data, PrivateBody(), local, SEED), FlatModel(copy.deepcopy(net))
    kept, rates = {"w": flat.w + 0.1, "buffers": flat.buffers}, torch.full((EPOCHS,), LR, dtype=torch.float64)
    orders = [Order(c, c, 1, EPOCHS, flat.w.clone(), flat.buffers, rates, {}, kept) for c in range(len(sizes))]
    for kind in (ExecutorSettings(kind="serial"), ExecutorSettings(kind="vectorised", stack=4)):
        columns = shop.executor(kind).train(orders).columns
        for row, (x, y) in enumerate(clients):
            flat.load(columns["w"][row])
            z = split(flat.module)[0](x.double()).detach()
            held = [label for label in range(5) if (y == label).any()]
            expected = torch.stack([z[y == label].mean(0) for label in held])
            assert columns["message/held"][row].nonzero()[:, 0].tolist() == held
            torch.testing.assert_close(columns["message/means"][row, held], expected, rtol=0, atol=1e-12)


def test_the_zoos_linear_model_runs() -> None:
    size = {"train_limit": 60, "test_limit": 50}
    result = run(Experiment(dataset=size, clients=3, rounds=2, model="linear", algorithm="fedgh", executor="serial"))
    assert result.summary["bytes_up"] == 2 * (result.data.label_counts() > 0).sum() * (4 * 784 + 8)
    assert result.summary["bytes_down"] == 2 * 3 * 4 * 7850


@pytest.mark.parametrize("last", [nn.Linear(2, 2), nn.LayerNorm(2), nn.Tanh()], ids=str)
def test_a_head_that_is_not_one_linear_layer_is_refused(last: nn.Module) -> None:
    head = nn.Sequential(nn.Linear(4, 2), last)
    with pytest.raises(
        InputError, match=r"algorithm: fedgh .*linear header; use a model whose last layer is one nn.Linear$"
    ):
        federation.train("fedgh", model=Classifier(nn.Linear(3, 4), head))  # type: ignore[arg-type]


def test_a_constant_bias_of_the_header_counts() -> None:
    """The server's header is the clients', constants included, unless such a model is refused."""
    net = biased()
    net[-1].bias.requires_grad = False
    with contextlib.suppress(InputError):
        check(federation.train("fedgh", model=net)[0], net, uneven())
