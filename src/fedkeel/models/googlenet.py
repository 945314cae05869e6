"""GoogLeNet for small images (Szegedy et al., 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import Norm, average, kaiming, unit

# Szegedy et al.'s Table 1: channels of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection; None halves.
_MODULES = [
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
]


def googlenet(inputs: Inputs, *, norm: Norm = "batch") -> Classifier:
    """GoogLeNet with a 3x3 stem for CIFAR and no auxiliary classifiers: FedAgg's Table VI."""
    width = 192
    layers = unit(inputs.shape[0], width, 3, norm)
    for channels in _MODULES:
        if channels is None:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        else:
            layers.append(Inception(width, channels, norm))
            width = channels[0] + channels[2] + channels[4] + channels[5]
    return Classifier(kaiming(nn.Sequential(*layers, *average())), nn.Linear(width, inputs.classes))


class Inception(nn.Module):
    """Four parallel branches whose channels are joined; two 3x3 convolutions replace the 5x5."""

    def __init__(self, before: int, channels: tuple[int, int, int, int, int, int], norm: Norm) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pool = channels
        self.branches = nn.ModuleList(
            [
                nn.Sequential(*unit(before, one, 1, norm)),
                nn.Sequential(*unit(before, reduce3, 1, norm), *unit(reduce3, three, 3, norm)),
                nn.Sequential(
                    *unit(before, reduce5, 1, norm), *unit(reduce5, five, 3, norm), *unit(five, five, 3, norm)
                ),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *unit(before, pool, 1, norm)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        """[n, before, h, w] to [n, one + three + five + pool, h, w]."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)
