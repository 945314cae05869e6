"""The gradient of a stack of one against plain PyTorch on a module of the test's own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel.local.batches import Batch, Samples
from fedkeel.local.gradients.autograd import AutogradGradient

SEED = 11


def network(*, channels: bool = False) -> nn.Module:
    torch.manual_seed(0)
    body: list[nn.Module] = [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.4)]
    if channels:
        body = [nn.Unflatten(1, (2, 3, 1)), nn.Conv2d(2, 5, (3, 1)), nn.BatchNorm2d(5), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(5, 3)).double()


def mini_batch(size: int = 8, **more: Any) -> Batch:
    rng = torch.Generator().manual_seed(3)
    x, y = torch.randn(1, size, 6, dtype=torch.float64, generator=rng), torch.randint(3, (1, size), generator=rng)
    weights = torch.full((1, size), more.get("share", 1.0) / size, dtype=torch.float64)
    return Batch(Samples((x, y)), np.array([size]), weights, **{"masks": SEED, "fresh": True, **more})


def plain(net: nn.Module, w: Tensor, batch: Batch, penalty: bool = False) -> tuple[Tensor, Tensor]:
    """(Mean loss, gradient [D]) at `w` [D] in training mode; batch norm moves its statistics."""
    nn.utils.vector_to_parameters(w, net.train().parameters())
    torch.manual_seed(SEED)
    z = net[:-1](batch.x[0])
    loss = cross_entropy(net[-1](z), batch.y[0])
    total = loss + (0.3 * z.square().sum(1)).mean() if penalty else loss
    return loss.detach(), nn.utils.parameters_to_vector(torch.autograd.grad(total, list(net.parameters())))


def weights(net: nn.Module) -> Tensor:
    start = nn.utils.parameters_to_vector(net.parameters()).detach()
    return start + 0.1 * torch.randn(start.shape, dtype=start.dtype, generator=torch.Generator().manual_seed(1))


def statistics(net: nn.Module) -> Tensor:
    return torch.cat([buffer.flatten().double() for buffer in net.buffers()])


@pytest.mark.parametrize("channels_last", [False, True])
def test_loss_gradient_and_statistics(channels_last: bool) -> None:
    net = network(channels=channels_last)
    gradient, batch = AutogradGradient(copy.deepcopy(net), channels_last), mini_batch()
    w = weights(net)
    losses, g = gradient(w[None], batch)
    loss, expected = plain(net, w, batch)
    assert losses.shape == batch.y.shape
    torch.testing.assert_close(losses, loss.expand(1, 8), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient.mean(losses, batch), loss.view(1, 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(g, expected[None], rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient.buffers, statistics(net)[None], rtol=0, atol=1e-12)


def test_only_a_fresh_mini_batch_moves_statistics_and_all_see_the_same_masks() -> None:
    net = network()
    gradient, batch = AutogradGradient(copy.deepcopy(net)), mini_batch(fresh=False)
    w, before = weights(net), statistics(net)
    torch.manual_seed(5)  # whatever the global generator says
    first, second = gradient(w[None], batch)[1], gradient(w[None], batch)[1]
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    assert not torch.equal(gradient(w[None], mini_batch(fresh=False, masks=SEED + 1))[1], first)
    loss, _ = plain(net, w, batch)
    with torch.no_grad():
        torch.testing.assert_close(gradient.loss(w[None], batch), loss.view(1, 1), rtol=0, atol=1e-12)
    assert torch.equal(gradient.buffers[0], before)
    gradient(w[None], mini_batch())
    torch.testing.assert_close(gradient.buffers[0], statistics(net), rtol=0, atol=1e-12)
    gradient.restore(before[None])
    assert torch.equal(gradient.buffers[0], before)


def test_a_part_of_the_clients_samples_counts_by_its_share() -> None:
    net = network()
    w, batch = weights(net), mini_batch(share=0.25, fresh=False)
    _, g = AutogradGradient(copy.deepcopy(net))(w[None], batch)
    torch.testing.assert_close(g[0], 0.25 * plain(net, w, batch)[1], rtol=0, atol=1e-12)


def test_a_penalty_on_the_features_is_in_the_gradient_alone() -> None:
    net = network()
    gradient, w, batch = AutogradGradient(copy.deepcopy(net)), weights(net), mini_batch()
    factor = torch.full((1, 8), 0.3, dtype=torch.float64)
    losses, g = gradient(w[None], batch, (lambda z, f: f * z.square().sum(1), (factor,)))
    loss, expected = plain(net, w, batch, penalty=True)
    torch.testing.assert_close(losses[0, 0], loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(g[0], expected, rtol=0, atol=1e-12)


def test_features_are_those_of_a_frozen_model_with_the_statistics_given() -> None:
    net = network()
    gradient, w, batch = AutogradGradient(copy.deepcopy(net)), weights(net), mini_batch()
    gradient(w[None], batch)
    kept, other = gradient.buffers, statistics(net) + 0.5
    z = gradient.features(w[None], other[None], batch.x)
    nn.utils.vector_to_parameters(w, net.parameters())
    net[1].running_mean += 0.5
    net[1].running_var += 0.5
    torch.testing.assert_close(z[0], net.eval()[:-1](batch.x[0]).detach(), rtol=0, atol=1e-12)
    assert torch.equal(gradient.buffers, kept)
