"""The papers' small networks: plain stacks of convolutions, then fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import drop


def linear(inputs: Inputs) -> Classifier:
    """Softmax regression, 784-10 on MNIST: FedAgg (MNIST-Linear)."""
    return _stack(inputs)


def mlp_400(inputs: Inputs) -> Classifier:
    """Two fully connected layers with 400 hidden units: FedLGA on Fashion-MNIST."""
    return _stack(inputs, hidden=[400])


def mnist_cnn(inputs: Inputs, *, dropout: float = 0.0) -> Classifier:
    """McMahan et al.'s (2017) CNN for MNIST: FedAgg, and with two dropouts FedEnt (MNIST-CNN).

    The papers' `7x7x64 and 512 units` are the inputs of the two fully connected layers. FedEnt gives no rate.
    """
    convolutions = [*_pooled(inputs.shape[0], 32, 5, padding=2), *_pooled(32, 64, 5, padding=2)]
    return _stack(inputs, convolutions, [512], dropout)


def lenet5(inputs: Inputs) -> Classifier:
    """LeNet-5 (LeCun et al., 1998): FedAgg, FedEnt on EMNIST-Letters, FedASMU on Fashion-MNIST and CIFAR."""
    return _lenet5(inputs, 6, 16)


def lenet5_wide(inputs: Inputs) -> Classifier:
    """LeNet-5 with 5x5x32 features, as the text of FedAgg has it for EMNIST-Letters.

    The text leaves the first convolution's channels open; here they are half of the second's, as in its other CNNs.
    """
    return _lenet5(inputs, 16, 32)


def cifar10_cnn(inputs: Inputs, *, dropout: float = 0.25) -> Classifier:
    """Three 3x3 convolutions and two fully connected layers: FedAgg and FedEnt on CIFAR-10 (CIFAR-10-CNN).

    `4x4x64 and 512 units` are inputs, as in MNIST-CNN; the papers leave the first channels and the rate open.
    """
    convolutions = [
        *_pooled(inputs.shape[0], 16, 3, padding=1),
        *_pooled(16, 32, 3, padding=1),
        *_pooled(32, 64, 3, padding=1),
    ]
    return _stack(inputs, convolutions, [512], dropout)


def cnn(inputs: Inputs) -> Classifier:
    """The synthetic CNN of FedASMU's Table 2: two 2x2 convolutions, no pooling, on CIFAR."""
    convolutions = [nn.Conv2d(inputs.shape[0], 64, 2), nn.ReLU(), nn.Conv2d(64, 32, 2), nn.ReLU()]
    return _stack(inputs, convolutions)


def _lenet5(inputs: Inputs, first: int, second: int) -> Classifier:
    """LeNet-5 was drawn for 32 pixels; smaller images are padded by 2 on every side."""
    padding = 2 if min(inputs.shape[1:]) < 32 else 0
    convolutions = [*_pooled(inputs.shape[0], first, 5, padding), *_pooled(first, second, 5, padding=0)]
    return _stack(inputs, convolutions, [120, 84])


def _pooled(before: int, after: int, kernel: int, padding: int) -> list[nn.Module]:
    """ReLU and maximum commute, and pooling first leaves the ReLU a quarter of the pixels."""
    return [nn.Conv2d(before, after, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()]


def _stack(
    inputs: Inputs, convolutions: Sequence[nn.Module] = (), hidden: Sequence[int] = (), dropout: float = 0.0
) -> Classifier:
    """`convolutions`, then `hidden` layers and the head, with `dropout` in front of each of these."""
    flat = nn.Sequential(*convolutions, nn.Flatten())
    with torch.no_grad():
        width = flat(torch.zeros(1, *inputs.shape)).shape[1]
    layers = list(flat)
    for units in hidden:
        layers += [*drop(dropout), nn.Linear(width, units), nn.ReLU()]
        width = units
    return Classifier(nn.Sequential(*layers, *drop(dropout)), nn.Linear(width, inputs.classes))
