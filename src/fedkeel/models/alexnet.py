"""AlexNet (Krizhevsky et al., 2012)."""

from __future__ import annotations

from torch import nn

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import Norm, drop, kaiming, unit


def alexnet(inputs: Inputs, *, norm: Norm = "none", dropout: float = 0.0) -> Classifier:
    """AlexNet's five convolutions at CIFAR's size and one linear classifier: FedASMU and FedAgg on CIFAR.

    The two layers of 4096 units between them would be nine tenths of the weights, and of every message.
    """
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
            *drop(dropout),
        )
    )
    sides = [-(-side // 32) for side in inputs.shape[1:]]
    return Classifier(body, nn.Linear(256 * sides[0] * sides[1], inputs.classes))


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(2, ceil_mode=True)
