"""Gradients of every loss, for mini-batches of unequal sizes whose samples count unequally, against plain autograd."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel.local.batches import Batch, Samples
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.gradients.gradient import Gradient
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.params import FlatModel, Layout
from fedkeel.task.losses import Loss
from fedkeel.task.settings import LossSettings
from fedkeel.task.task import new_task

SIZES = [5, 3, 1]
CASES: dict[str, tuple[str, dict[str, object], int]] = {
    "softmax": ("classification", {}, 4),
    "smoothed": ("classification", {"label_smoothing": 0.1}, 4),
    "one logit": ("binary", {}, 1),
    "two logits": ("binary", {"label_smoothing": 0.2}, 2),
    "labels": ("multilabel", {}, 3),
    "mse": ("regression", {}, 1),
    "mse of two": ("regression", {}, 2),
    "mae": ("regression", {"name": "mae"}, 2),
    "huber": ("regression", {"name": "huber", "delta": 0.3}, 1),
}


def targets(kind: str, outputs: int, k: int, b: int) -> Tensor:
    match kind:
        case "classification":
            return torch.randint(outputs, (k, b))
        case "binary":
            return torch.randint(2, (k, b))
        case "multilabel":
            return torch.randint(2, (k, b, outputs)).double()
    return torch.randn(*((k, b) if outputs == 1 else (k, b, outputs)), dtype=torch.float64)


def net(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, outputs)).double()


def by_hand(module: nn.Module, loss: Loss, w: Tensor, batch: Batch) -> tuple[list[float], Tensor]:
    """The sum of loss times what a sample counts, over the mini-batch's size."""
    flat, found, gradients = FlatModel(module), [], []
    for row, size in enumerate(batch.sizes):
        flat.load(w[row])
        each = loss.each(flat.module(batch.x[row, :size]), batch.y[row, :size])
        counts = torch.ones(size, dtype=torch.float64) if batch.importance is None else batch.importance[row, :size]
        total = (each * counts).sum() / int(size)
        found.append(float(total.detach()))
        gradients.append(torch.cat([part.flatten() for part in torch.autograd.grad(total, flat.parameters)]))
    return found, torch.stack(gradients)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("way", ["dense", "vmap", "autograd"])
@pytest.mark.parametrize("case", CASES)
def test_every_way_agrees(case: str, way: str, weighted: bool) -> None:
    torch.manual_seed(3)
    kind, settings, outputs = CASES[case]
    loss = new_task(kind, LossSettings(**settings), ()).loss  # type: ignore[arg-type]
    module = net(outputs)
    layout = Layout.of(module)
    gradient: Gradient | None = None
    for sizes in [SIZES] if way != "autograd" else [[size] for size in SIZES]:
        k, b = len(sizes), max(sizes)
        x, y = torch.randn(k, b, 6, dtype=torch.float64), targets(kind, outputs, k, b)
        weights = torch.tensor([[1 / size] * size + [0.0] * (b - size) for size in sizes], dtype=torch.float64)
        importance = torch.rand(k, b, dtype=torch.float64) if weighted else None
        batch = Batch(Samples((x, y), None, importance), np.array(sizes), weights, fresh=True)
        w = torch.randn(k, layout.size, dtype=torch.float64) * 0.5
        match way:
            case "dense":
                gradient = DenseGradient.of(module, layout, (6,), loss)
            case "vmap":
                gradient = VmappedGradient(module, layout, loss)
            case _:
                gradient = AutogradGradient(net(outputs), loss=loss)
        assert gradient is not None
        losses, g = gradient(w, batch)
        expected = by_hand(module, loss, w, batch)
        np.testing.assert_allclose(gradient.mean(losses, batch)[:, 0], expected[0], rtol=1e-10)
        torch.testing.assert_close(g, expected[1], rtol=1e-9, atol=1e-12)
        if gradient.descends:
            out, rate = torch.empty_like(w), torch.rand(k, 1, dtype=torch.float64)
            gradient.descend(w, batch, rate, out, w)
            torch.testing.assert_close(out, w - rate * g, rtol=1e-9, atol=1e-12)


def test_without_a_closed_form_there_is_no_dense_gradient() -> None:
    module = net(4)
    loss = new_task("sequence", LossSettings(), ()).loss
    assert DenseGradient.of(module, Layout.of(module), (6,), loss) is None
