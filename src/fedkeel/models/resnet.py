"""Residual networks for small images (He et al., 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import Norm, average, convolve, kaiming, normalise, unit


def resnet18(inputs: Inputs, *, norm: Norm = "batch") -> Classifier:
    """ResNet-18 with a 3x3 stem for CIFAR: FedAgg's Table VI."""
    return _resnet(inputs, [64, 128, 256, 512], 2, norm, _project)


def resnet20(inputs: Inputs, *, norm: Norm = "batch") -> Classifier:
    """He et al.'s ResNet-20 for CIFAR: FedASMU on CIFAR-100 and Tiny-ImageNet, FedLGA on CIFAR."""
    return _resnet(inputs, [16, 32, 64], 3, norm, _widen)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut; where the width grows, the size halves."""

    def __init__(self, before: int, after: int, norm: Norm, shortcut: nn.Module) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.branch = nn.Sequential(
            *unit(before, after, 3, norm, stride), convolve(after, after, 3, norm), *normalise(after, norm)
        )
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """[n, before, h, w] to [n, after, h', w']."""
        return F.relu(self.branch(x) + self.shortcut(x))


class Widen(nn.Module):
    """He et al.'s option A: every second pixel, and zeros in the `added` channels."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c + added, h', w']."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))


def _widen(before: int, after: int, _: Norm) -> nn.Module:
    return Widen(after - before)


def _project(before: int, after: int, norm: Norm) -> nn.Module:
    return nn.Sequential(convolve(before, after, 1, norm, stride=2), *normalise(after, norm))


def _resnet(
    inputs: Inputs,
    widths: Sequence[int],
    depth: int,
    norm: Norm,
    widen: Callable[[int, int, Norm], nn.Module],
) -> Classifier:
    """`depth` blocks of each of `widths`; `widen` makes the shortcut where the width changes."""
    blocks: list[Block] = []
    before = widths[0]
    for after in (width for width in widths for _ in range(depth)):
        shortcut = nn.Identity() if before == after else widen(before, after, norm)
        blocks.append(Block(before, after, norm, shortcut))
        before = after
    stem = unit(inputs.shape[0], widths[0], 3, norm)
    body = kaiming(nn.Sequential(*stem, *blocks, *average()))
    if norm == "none":
        _calm(blocks)
    return Classifier(body, nn.Linear(before, inputs.classes))


@torch.no_grad()
def _calm(blocks: Sequence[Block]) -> None:
    """Scales branches down so that, without a norm, the variance does not double with every block."""
    for block in blocks:
        for parameter in block.branch[-1].parameters():
            parameter.mul_(len(blocks) ** -0.5)
