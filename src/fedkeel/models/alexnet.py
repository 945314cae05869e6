"""AlexNet (Krizhevsky et al., 2012)."""

from __future__ import annotations

from torch import nn

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import Norm, drop, kaiming, unit


def alexnet(inputs: Inputs, *, norm: Norm = "none", dropout: float = 0.0, hidden: int | None = None) -> Classifier:
    """AlexNet's five convolutions at CIFAR's size and one linear classifier: FedASMU and FedAgg on CIFAR.

    The paper's two layers of 4096 units between them would be nine tenths of the weights, and of every message;
    `hidden=4096` adds them. Dropout then follows each of them, as in the paper.
    """
    sides = [-(-side // 32) for side in inputs.shape[1:]]
    features = 256 * sides[0] * sides[1]
    body = kaiming(
        nn.Sequential(
            *unit(inputs.shape[0], 64, 11, norm, stride=4),
            _halve(),
            *unit(64, 192, 5, norm),
            _halve(),
            *unit(192, 384, 3, norm),
            *unit(384, 256, 3, norm),
            *unit(256, 256, 3, norm),
            _halve(),
            nn.Flatten(),
            *(drop(dropout) if hidden is None else _dense(features, hidden, dropout)),
        )
    )
    return Classifier(body, nn.Linear(hidden or features, inputs.classes))


def _dense(features: int, hidden: int, dropout: float) -> list[nn.Module]:
    return [each for before in (features, hidden) for each in (nn.Linear(before, hidden), nn.ReLU(), *drop(dropout))]


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(2, ceil_mode=True)
