"""Chains of layers as PyTorch modules, also random; kernels of every instruction set; autograd client by client."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedkeel.local.gradients.chain import chain
from fedkeel.local.native import library
from fedkeel.local.native.network import Network
from fedkeel.params import Layout
from tests.helpers.native import needed
from tests.helpers.tiers import slow_but

ISAS = library.usable() or ("none",)
"""Every instruction set that there is here."""
EVERY_ISA = pytest.mark.parametrize("isa", slow_but(ISAS, ISAS[0]))
"""The best one in the fast tier; without any, the test is skipped."""
TOGETHER = 64
"""Samples that go through the kernels together; larger mini-batches come in parts."""
_WIDTHS = (1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 17, 24, 25, 40)
_WORK = 60_000  # multiplications of a layer for one sample, at most


@cache
def kernels(isa: str) -> library.Library:
    """The library of one instruction set."""
    needed()
    path = library.FOLDER / f"libfedkeel-{isa}.so"
    handle, problem = library._open(path)
    assert handle is not None, problem
    return library.Library(handle, isa, path)


def network(
    module: nn.Module, shape: tuple[int, ...], isa: str = ISAS[0], dtype: torch.dtype = torch.float64, threads: int = 1
) -> Network:
    """The kernels for this module."""
    layout = Layout.of(module)
    return Network(kernels(isa), chain(module, layout, shape), layout, dtype, threads)


def logits(module: nn.Module, w: Tensor, x: Tensor) -> Tensor:
    """What the module says with weights [D]."""
    out: Tensor = functional_call(module, Layout.of(module).views(w), (x,))
    return out


def loss_and_gradient(module: nn.Module, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(Losses [b], gradient [D] of their sum) at weights [D], by autograd."""
    at = w.detach().clone().requires_grad_()
    losses = cross_entropy(logits(module, at, x), y, reduction="none")
    return losses.detach(), torch.autograd.grad(losses.sum(), at)[0]


def numbers(module: nn.Module, shape: tuple[int, ...], k: int, b: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [k, D] of a size that keeps activations at theirs, samples [k, b, ...] and labels [k, b]."""
    draw = torch.Generator().manual_seed(seed)
    layout = Layout.of(module)
    w = torch.randn(k, layout.size, generator=draw, dtype=torch.float64)
    for part in layout.parameters:
        w[:, part.start : part.stop] *= prod(part.shape[1:]) ** -0.5 if len(part.shape) > 1 else 0.3
    x = torch.randn(k, b, *shape, generator=draw, dtype=torch.float64)
    classes = logits(module, w[0], x[0, :1]).shape[1]
    return w, x, torch.randint(0, classes, (k, b), generator=draw)


def whole(module: nn.Module, shape: tuple[int, ...], k: int, b: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same of whole numbers from -1 to 1: equal pixels, activations that are zero, equal logits."""
    w, x, y = numbers(module, shape, k, b, seed)
    w, x = (torch.sign(each) * (each.abs() > each.abs().median()) for each in (w, x))
    last = Layout.of(module).parameters[-1 if Layout.of(module).parameters[-1].shape[1:] else -2 :]
    for part in last:
        w[:, part.start : part.stop] /= 16  # so that no probability is all
    return w, x, y


@st.composite
def modules(draw: Any) -> tuple[nn.Sequential, tuple[int, ...]]:
    """(A chain of one to four layers, the shape of its samples)."""
    layers: list[nn.Module] = []
    shape: tuple[int, ...] = (draw(st.integers(1, 9)),)
    before = ""
    for number in range(images := draw(st.integers(0, 3))):
        if not number:
            shape = (draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
            first = shape
        channels, height, width = shape
        if before and height == width and draw(st.integers(0, 3)) == 0:
            k = draw(st.integers(1, height))
            layers.append(nn.AdaptiveAvgPool2d(1) if k == height else nn.AvgPool2d(k))
            shape, before = (channels, height // k, width // k), "average"
            continue
        k = draw(st.integers(1, 7))
        least = max(0, -(-(k - min(height, width)) // 2))
        pad = draw(st.integers(least, max(least, k + 1)))
        rows, columns = height + 2 * pad - k + 1, width + 2 * pad - k + 1
        most = max(1, _WORK // (rows * columns * channels * k * k))
        outputs = min(most, draw(st.sampled_from(_WIDTHS)))
        layers.append(nn.Conv2d(channels, outputs, k, padding=pad, bias=draw(st.booleans())))
        pool = [nn.MaxPool2d(2)] if min(rows, columns) > 1 and draw(st.booleans()) else []
        relu = [nn.ReLU()] if number < images - 1 and draw(st.booleans()) else []
        layers += pool + relu if draw(st.booleans()) else relu + pool
        shape, before = (outputs, rows // 2, columns // 2) if pool else (outputs, rows, columns), "convolution"
    if not images:
        first = shape
    layers.append(nn.Flatten())
    features = prod(shape)
    dense = draw(st.integers(0 if images and features <= 40 else 1, 4 - images))
    for number in range(dense):
        outputs = draw(st.sampled_from(_WIDTHS)) if number < dense - 1 else draw(st.integers(1, 12))
        if before == "convolution" and not number and draw(st.booleans()):
            layers.append(nn.ReLU())
        layers.append(nn.Linear(features, outputs, bias=draw(st.booleans())))
        layers += [nn.ReLU()] if number < dense - 1 and draw(st.booleans()) else []
        features = outputs
    return nn.Sequential(*layers).double(), first


def stack(rows: Tensor, aside: bool) -> Tensor:
    """The same rows, or lying in a larger memory: further apart, and beginning at an odd place."""
    if not aside:
        return rows.clone()
    wide = torch.full((len(rows), rows[0].numel() + 5), 7.5, dtype=rows.dtype)
    view = wide[:, 1 : 1 + rows[0].numel()]
    view.copy_(rows.flatten(1))
    return view


def some(stacked: Tensor, aside: bool) -> Tensor:
    """A client's samples [k, b, ...], or a part of more that lie side by side: a view that is not contiguous."""
    if not aside:
        return stacked.clone()
    more = torch.cat([stacked, stacked[:, :1].flip(1) + 1, stacked[:, :1]], dim=1)
    return torch.split(more, stacked.shape[1], dim=1)[0]


def sizes_of(counts: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(counts, dtype=np.int64)
