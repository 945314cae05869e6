"""Losses and their slopes against PyTorch's autograd and formulas written out here."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedkeel import InputError
from fedkeel.task.settings import LossSettings
from fedkeel.task.task import new_task

DRAW = torch.Generator().manual_seed(0)
K, B = 3, 5


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=DRAW)


def smooth(p: Tensor, y: Tensor, share: float) -> Tensor:
    """Cross-entropy with a target that is mixed with the uniform one, by its definition."""
    target = torch.full_like(p, share / p.shape[-1])
    target[torch.arange(len(y)), y] += 1 - share
    return -(target * p.log()).sum(-1)


CASES: dict[str, tuple[str, dict[str, object], Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]] = {
    "cross-entropy": (
        "classification", {}, normal(K, B, 4), classes(4, K, B),
        lambda z, y: -z.softmax(-1)[torch.arange(len(y)), y].log(),
    ),
    "smoothed": (
        "classification", {"label_smoothing": 0.2}, normal(K, B, 4), classes(4, K, B),
        lambda z, y: smooth(z.softmax(-1), y, 0.2),
    ),
    "one logit": (
        "binary", {}, normal(K, B, 1), classes(2, K, B),
        lambda z, y: -torch.where(y == 1, z[:, 0].sigmoid(), 1 - z[:, 0].sigmoid()).log(),
    ),
    "two logits": (
        "binary", {}, normal(K, B, 2), classes(2, K, B),
        lambda z, y: -z.softmax(-1)[torch.arange(len(y)), y].log(),
    ),
    "one smoothed logit": (
        "binary", {"label_smoothing": 0.3}, normal(K, B, 1), classes(2, K, B),
        lambda z, y: smooth(torch.cat([1 - z.sigmoid(), z.sigmoid()], -1), y, 0.3),
    ),
    "labels": (
        "multilabel", {}, normal(K, B, 3), classes(2, K, B, 3).double(),
        lambda z, y: -(y * z.sigmoid().log() + (1 - y) * (1 - z.sigmoid()).log()).mean(-1),
    ),
    "mse": ("regression", {}, normal(K, B, 1), normal(K, B), lambda z, y: (z[:, 0] - y) ** 2),
    "mse of many": (
        "regression", {"name": "mse"}, normal(K, B, 3), normal(K, B, 3), lambda z, y: ((z - y) ** 2).mean(-1),
    ),
    "mae": ("regression", {"name": "mae"}, normal(K, B, 2), normal(K, B, 2), lambda z, y: (z - y).abs().mean(-1)),
    "huber": (
        "regression", {"name": "huber", "delta": 0.5}, normal(K, B, 1), normal(K, B),
        lambda z, y: torch.where((z[:, 0] - y).abs() < 0.5, (z[:, 0] - y) ** 2 / 2, 0.5 * ((z[:, 0] - y).abs() - 0.25)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_losses_and_their_slopes(name: str) -> None:
    kind, settings, z, y, formula = CASES[name]
    loss = new_task(kind, LossSettings(**settings), ()).loss  # type: ignore[arg-type]
    weights = torch.rand(K, B, generator=DRAW, dtype=torch.float64)
    found, slopes = loss.slope(z.clone(), y, weights)
    assert loss.closed
    for k in range(K):
        outputs = z[k].clone().requires_grad_()
        expected = formula(outputs, y[k])
        torch.testing.assert_close(loss.each(z[k], y[k]), expected.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(loss.mean(z[k], y[k]), expected.detach().mean(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(loss.sum(z[k], y[k]), expected.detach().sum(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[k], expected.detach(), rtol=1e-12, atol=1e-12)
        (slope,) = torch.autograd.grad((expected * weights[k]).sum(), outputs)
        torch.testing.assert_close(slopes[k], slope, rtol=1e-10, atol=1e-12)


def test_tokens_that_do_not_count_are_left_out() -> None:
    loss = new_task("sequence", LossSettings(), ()).loss
    z, y = normal(2, 3, 5), torch.tensor([[1, 4, -100], [-100, -100, -100]])
    expected = -(z[0, 0].log_softmax(0)[1] + z[0, 1].log_softmax(0)[4]) / 2
    torch.testing.assert_close(loss.each(z, y), torch.stack([expected, torch.zeros((), dtype=torch.float64)]))


def test_shapes_of_outputs_and_targets_never_broadcast() -> None:
    loss = new_task("regression", LossSettings(), ()).loss
    z, y = normal(4, 1), normal(4)
    torch.testing.assert_close(loss.mean(z, y), functional.mse_loss(z[:, 0], y))


@pytest.mark.parametrize(
    ("kind", "loss", "words"),
    [
        ("regression", {"name": "cross_entropy"}, ["loss.name", "task=regression", "mse", "task=classification"]),
        ("classification", {"name": "crossentropi"}, ["did you mean cross_entropy"]),
        ("regression", {"class_weights": "balanced"}, ["loss.class_weights", "task=regression"]),
        ("regression", {"label_smoothing": 0.1}, ["loss.label_smoothing", "mse"]),
        ("classification", {"delta": 2.0}, ["loss.delta", "huber"]),
        ("binary", {"reduction": "mean"}, ["loss.reduction", "a loss of your own"]),
    ],
)
def test_a_loss_that_does_not_fit(kind: str, loss: dict[str, object], words: list[str]) -> None:
    from fedkeel import Experiment

    with pytest.raises(InputError) as caught:
        Experiment(task=kind, loss=loss)
    for word in words:
        assert word in str(caught.value)
