"""Gradients of one client's mini-batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError
from fedkeel.local.oracle import BatchOracle
from fedkeel.params import Layout
from tests.helpers.oracles import DATA, load, oracle, weights


def seen(it: BatchOracle, epoch: int = 0) -> list[Tensor]:
    return [it._batch.x[0].clone() for step in it.steps() if it._batch is not None and step.epochs == epoch]


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def test_gradient_clipping_and_decay() -> None:
    net = Unused()
    it = oracle(net, clip_norm=0.1, weight_decay=0.5, batch_size="full")
    w = torch.randn(weights(net).shape, generator=torch.Generator().manual_seed(1))
    for _ in it.steps():
        g = it.grad(w)
    raw = {n: v.detach().requires_grad_() for n, v in Layout.of(net).views(w[0].clone()).items()}
    loss = cross_entropy(DATA.train.x[:10] @ raw["head.weight"].T + raw["head.bias"], DATA.train.y[:10])
    grads = torch.autograd.grad(loss, [raw["head.weight"], raw["head.bias"]])
    plain = torch.cat([torch.zeros(2), *[p.flatten() for p in grads]])  # nothing flows to the spare parameter
    assert plain.norm() > 0.1
    torch.testing.assert_close(g[0], plain * (0.1 / plain.norm()) + 0.5 * w[0], rtol=1e-4, atol=1e-6)


def test_a_full_batch_is_all_samples_in_one_step() -> None:
    it = oracle(nn.Linear(4, 3), batch_size="full")
    (batch,) = seen(it)
    assert sorted(batch[:, 0].tolist()) == sorted(DATA.train.x[:10, 0].tolist())


def test_every_client_round_and_epoch_has_its_own_order() -> None:
    def order(client: int, round: int, epoch: int) -> tuple[float, ...]:
        it = oracle(nn.Linear(4, 3), client=client, round=round, batch_size=4, epochs=2)
        return tuple(torch.cat(seen(it, epoch))[:, 0].tolist())

    assert order(0, 1, 0) == order(0, 1, 0)
    assert len({order(0, 1, 0), order(1, 1, 0), order(0, 2, 0), order(0, 1, 1)}) == 4  # all clients hold the same


def test_every_client_and_epoch_is_augmented_on_its_own() -> None:
    same = np.tile(np.arange(36.0).reshape(1, 1, 6, 6), (8, 1, 1, 1))
    images = FederatedData.from_clients([(same, np.arange(8) % 3)] * 2, test=(same[:3], [0, 1, 2]))
    images = replace(images, augment=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def draw(client: int, epoch: int) -> Tensor:
        return torch.cat(seen(oracle(net, images, client, epochs=2), epoch))

    assert torch.equal(draw(0, 0), draw(0, 0))
    assert not torch.equal(draw(0, 0), draw(1, 0))
    assert not torch.equal(draw(0, 0), draw(0, 1))


def test_gradients_of_one_step_share_dropout_and_leave_statistics_to_the_first() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    it = oracle(net, batch_size=5)
    w = weights(net)
    per_step = []
    for _ in it.steps():
        first, after = it.grad(w), it.buffers
        elsewhere, again = it.grad(w + 1), it.grad(w)
        torch.testing.assert_close(again, first, rtol=0, atol=0)
        assert not torch.equal(elsewhere, first)
        assert torch.equal(it.buffers, after)
        per_step.append((first, it._batch.masks))  # type: ignore[union-attr]
    assert len({seed for _, seed in per_step}) == 2
    assert net[0].num_batches_tracked == 2


def test_a_step_without_a_gradient_does_not_confuse_the_next() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    it = oracle(net, batch_size=4)
    w, expected = weights(net), []
    for number, _ in enumerate(it.steps()):
        if number:
            x, y = it._batch.x[0], it._batch.y[0]  # type: ignore[union-attr]
            it.grad(w)
            it.grad(w + 1)
            load(net, w)
            expected.append((float(cross_entropy(net(x), y).detach()), len(y)))
            net[0].num_batches_tracked -= 1  # this test's own look
    assert net[0].num_batches_tracked == 2
    assert it.loss[0] == pytest.approx(np.average([e[0] for e in expected], weights=[e[1] for e in expected]), rel=1e-5)


def test_a_job_without_any_gradient_has_no_loss() -> None:
    it = oracle(nn.Linear(4, 3))
    for _ in it.steps():
        pass
    with pytest.raises(FedkeelError, match="no gradient in a whole job"):
        it.loss  # noqa: B018


@pytest.mark.parametrize("looks", [1, 2])
def test_the_loss_is_that_of_each_steps_first_gradient(looks: int) -> None:
    net = nn.Linear(4, 3)
    it = oracle(net, batch_size=4)
    w = weights(net)
    for _ in it.steps():
        for look in range(looks):
            it.grad(w + look)
    load(net, w)
    plain = cross_entropy(net(DATA.train.x[:10]), DATA.train.y[:10])
    assert it.loss[0] == pytest.approx(float(plain.detach()), rel=1e-5)
