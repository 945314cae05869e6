"""DenseNet for small images (Huang et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import Norm, average, convolve, kaiming, normalise

_GROWTH = 32
_BLOCKS = [6, 12, 24, 16]


def densenet121(inputs: Inputs, *, norm: Norm = "batch") -> Classifier:
    """DenseNet-121 with a 3x3 stem for CIFAR: FedAgg's Table VI."""
    width = 2 * _GROWTH
    layers: list[nn.Module] = [convolve(inputs.shape[0], width, 3, norm)]
    for block, depth in enumerate(_BLOCKS):
        if block:
            layers += [*_activated(width, width // 2, 1, norm), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(depth):
            layers.append(Dense(width, norm))
            width += _GROWTH
    layers += [*normalise(width, norm), nn.ReLU(), *average()]
    return Classifier(kaiming(nn.Sequential(*layers)), nn.Linear(width, inputs.classes))


class Dense(nn.Module):
    """Adds `_GROWTH` channels, computed from all before them through a bottleneck of four times as many."""

    def __init__(self, before: int, norm: Norm) -> None:
        super().__init__()
        self.grow = nn.Sequential(*_activated(before, 4 * _GROWTH, 1, norm), *_activated(4 * _GROWTH, _GROWTH, 3, norm))

    def forward(self, x: Tensor) -> Tensor:
        """[n, before, h, w] to [n, before + _GROWTH, h, w]."""
        return torch.cat([x, self.grow(x)], dim=1)


def _activated(before: int, after: int, kernel: int, norm: Norm) -> list[nn.Module]:
    """Normalisation and ReLU in front of a convolution."""
    return [*normalise(before, norm), nn.ReLU(), convolve(before, after, kernel, norm)]
