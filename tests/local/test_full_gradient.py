"""The gradient of all of a client's samples: alone, in stacks, and with models that have chance or memory."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel.data.federated import FederatedData
from fedkeel.local.batches import Batches
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.oracle import BatchOracle
from fedkeel.local.settings import LocalSettings
from fedkeel.params import Layout
from tests.helpers.oracles import DATA, load, oracle, weights

SIZES = [13, 9, 8, 4, 1]
"""In descending order of steps, as a stack must come."""


def ragged() -> FederatedData:
    rng = np.random.default_rng(2)
    parts = [(rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for n in SIZES]
    return FederatedData.from_clients(parts, test=parts[0]).to(torch.float64)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def of_all_samples(net: nn.Module, w: Tensor, data: FederatedData, client: int) -> Tensor:
    """In one piece, by plain autograd."""
    nn.utils.vector_to_parameters(w, net.parameters())
    first = sum(SIZES[:client])
    own = slice(first, first + SIZES[client])
    loss = cross_entropy(net(data.train.x[own]), data.train.y[own])
    return nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.slow
@pytest.mark.parametrize("closed_form", [True, False])
@pytest.mark.parametrize("batch_size", [4, 100, "full"])
def test_the_full_gradient_alone_and_in_a_stack_of_unequal_clients(batch_size: Any, closed_form: bool) -> None:
    """At weights of each client's own, as a mean over samples and not over mini-batches, and steps do no harm."""
    data, net, clients = ragged(), network(), range(len(SIZES))
    local = LocalSettings(batch_size=batch_size)
    layout = Layout.of(net)
    gradient = DenseGradient.of(net, layout, data.shape) if closed_form else VmappedGradient(net, layout)
    assert gradient is not None
    batches = Batches(data, local, 7, [1] * len(SIZES), clients, [1] * len(SIZES), torch.float64)
    stack = BatchOracle(gradient, batches, local)
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(len(SIZES), layout.size, dtype=torch.float64, generator=generator)
    stacked = stack.full_grad(w)
    for step in stack.steps():
        stack.grad(w[: step.active])
    torch.testing.assert_close(stack.full_grad(w), stacked, rtol=0, atol=0)
    torch.testing.assert_close(stack.full_grad(w[:3]), stacked[:3], rtol=0, atol=1e-12)  # of those still at work
    for client in clients:
        own = Batches(data, local, 7, [1], [client], [1], torch.float64)
        (alone,) = BatchOracle(AutogradGradient(network()), own, local).full_grad(w[client : client + 1])
        expected = of_all_samples(network(), w[client], data, client)
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(stacked[client], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stack", [False, True])
def test_the_full_gradient_is_clipped_as_a_whole_and_then_decayed(stack: bool) -> None:
    data, net = ragged(), network()
    local = LocalSettings(batch_size=4, clip_norm=0.05, weight_decay=0.5)
    w = torch.full((Layout.of(net).size,), 0.3, dtype=torch.float64)
    w[::3] = -0.4
    batches = Batches(data, local, 7, [1], [0], [1], torch.float64)
    gradient = VmappedGradient(net, Layout.of(net)) if stack else AutogradGradient(net)
    (got,) = BatchOracle(gradient, batches, local).full_grad(w[None])
    plain = of_all_samples(network(), w, data, 0)
    assert plain.norm() > 0.1
    torch.testing.assert_close(got, plain * (0.05 / (plain.norm() + 1e-6)) + 0.5 * w, rtol=0, atol=1e-12)


def test_the_full_gradient_sees_batch_norm_as_training_does_and_leaves_its_statistics_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    it = oracle(net, batch_size=4)
    w = weights(net)
    for _ in it.steps():
        it.grad(w)
    before = it.buffers
    got = it.full_grad(w + 0.1)
    assert torch.equal(it.buffers, before)
    assert net.training

    load(net, w + 0.1)
    expected = torch.zeros_like(w[0])
    for own in torch.arange(10).split(4):  # ten samples, as they lie
        loss = cross_entropy(net(DATA.train.x[own]), DATA.train.y[own]) * (len(own) / 10)
        expected += nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(net.parameters())))
    torch.testing.assert_close(got[0], expected, rtol=1e-4, atol=1e-6)


def test_the_full_gradient_draws_the_same_dropout_each_time_and_none_of_a_steps_own() -> None:
    masks: list[Tensor] = []
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    net[1].register_forward_hook(lambda _, inputs, output: masks.append((output == 0) & (inputs[0] != 0)))
    it = oracle(net, batch_size=5)
    w = weights(net)
    before = it.full_grad(w)
    torch.manual_seed(123)  # whatever the global generator says
    for _ in it.steps():
        first = it.grad(w)
        torch.testing.assert_close(it.full_grad(w), before, rtol=0, atol=0)
        torch.testing.assert_close(it.grad(w), first, rtol=0, atol=0)
    torch.testing.assert_close(it.full_grad(w), before, rtol=0, atol=0)
    assert all(mask.any() for mask in masks)  # dropout is at work
    assert not torch.equal(masks[0], masks[1])  # another draw for every mini-batch
    other = oracle(net, client=1, batch_size=5)  # with the same samples
    assert not torch.equal(other.full_grad(w), before)


def test_the_full_gradient_has_no_part_in_the_training_loss() -> None:
    net = nn.Linear(4, 3)
    it = oracle(net, batch_size=4)
    w = weights(net)
    for _ in it.steps():
        it.full_grad(w + 1)
        it.grad(w)
    it.full_grad(w + 1)
    load(net, w)
    plain = cross_entropy(net(DATA.train.x[:10]), DATA.train.y[:10])
    assert it.loss[0] == pytest.approx(float(plain.detach()), rel=1e-5)
