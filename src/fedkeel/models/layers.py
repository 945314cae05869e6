"""The layers that several networks are made of."""

from __future__ import annotations

from typing import Literal, TypeVar, get_args

from torch import nn

Norm = Literal["batch", "group", "none"]
NORMS: tuple[str, ...] = get_args(Norm)

Module = TypeVar("Module", bound=nn.Module)


def groups(channels: int) -> int:
    """The most groups, up to 32 (Wu and He, 2018), that divide `channels` and keep at least 8 in each."""
    return max(n for n in range(1, 33) if n == 1 or (channels % n == 0 and channels // n >= 8))


def normalise(channels: int, norm: Norm) -> list[nn.Module]:
    """The normalisation of `channels` feature maps: one layer, or none."""
    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if norm == "group":
        return [nn.GroupNorm(groups(channels), channels)]
    return []


def convolve(before: int, after: int, kernel: int, norm: Norm, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size (up to the stride); no bias where a normalisation would cancel it."""
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=norm == "none")


def unit(before: int, after: int, kernel: int, norm: Norm, stride: int = 1) -> list[nn.Module]:
    """Convolution, normalisation, ReLU."""
    return [convolve(before, after, kernel, norm, stride), *normalise(after, norm), nn.ReLU()]


def average() -> list[nn.Module]:
    """The mean of each feature map, as a flat vector."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def drop(dropout: float) -> list[nn.Module]:
    """A dropout layer where there is something to drop."""
    return [nn.Dropout(dropout)] if dropout else []


def kaiming(module: Module) -> Module:
    """`module` with He et al.'s (2015) initial convolutions.

    PyTorch's own shrink the signal's variance sixfold per layer, too much for more than a few layers without a norm.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
