"""VGG (Simonyan and Zisserman, 2015)."""

from __future__ import annotations

from torch import nn

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import Norm, average, kaiming, unit

# Simonyan and Zisserman's Table 1, column A: channels of 3x3 convolutions; None halves.
_LAYERS = [64, None, 128, None, 256, 256, None, 512, 512, None, 512, 512, None]


def vgg11(inputs: Inputs, *, norm: Norm = "batch") -> Classifier:
    """VGG-11, averaged into 512 features: FedAgg and FedEnt on CIFAR-100, FedASMU on CIFAR.

    The average pool before the classifier is FedAgg's (Sec. VI-A5); it replaces the two layers of 4096 units.
    """
    width = inputs.shape[0]
    layers: list[nn.Module] = []
    for channels in _LAYERS:
        if channels is None:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))  # rounding up, 28 pixels allow five halvings
        else:
            layers += unit(width, channels, 3, norm)
            width = channels
    return Classifier(kaiming(nn.Sequential(*layers, *average())), nn.Linear(width, inputs.classes))
