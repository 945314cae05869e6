"""How far local training leads: the length of a client's path, which makes updates comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Curve = Callable[[int | NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""`curve(step, each)`: the factor on the learning rate in a step of a job, counted from 0, where an epoch has `each`
steps."""
Numbers = NDArray[np.float64]
_TOGETHER = 512
"""Steps that are looked at together; not fewer for more clients, so that a client's length is its own to the bit."""


def path_length(
    lr: Tensor,
    epochs: Tensor,
    steps: Tensor,
    momentum: float = 0.0,
    pull: float = 0.0,
    nesterov: bool = False,
    curve: Curve | None = None,
) -> Tensor:
    """[..., 1]: with the same gradient g in every step, start - w would be this number times g.

    FedNova's ||a_i||_1 times the learning rate: K lr for plain SGD; momentum m makes a gradient count m, m^2, ... again
    in the steps after its own, and a pull mu (w - start) takes a part of the way back in every step. `lr` [..., E] may
    change from epoch to epoch, and with a `curve` from step to step; every epoch has steps / epochs steps. Without a
    curve, this takes no longer for more steps.
    """
    rates, last, count = lr.double().cpu().numpy(), epochs.cpu().numpy(), steps.cpu().numpy()
    each = count // last
    if not momentum and not pull and curve is None:
        done = np.arange(rates.shape[-1]) < last
        length = np.where(done, rates, 0.0).sum(-1, keepdims=True) * each
    else:
        maps = partial(_maps, momentum=momentum, pull=pull, nesterov=nesterov)
        state = np.zeros((*count.shape[:-1], 3, 1))
        state[..., 2, 0] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):  # of clients that overshoot; rules check their lengths
            for part in _alike(maps, rates, last, each) if curve is None else _chunks(maps, rates, last, count, curve):
                state = _times(part, state)
        length = state[..., 0, :]
    return torch.from_numpy(length).to(lr)


def _maps(rate: Numbers, momentum: float, pull: float, nesterov: bool) -> Numbers:
    """[..., 3, 3]: what a step at each rate makes of (length, velocity, 1)."""
    own, before = (1 + momentum, momentum**2) if nesterov else (1.0, momentum)
    maps = np.zeros((*rate.shape, 3, 3))
    maps[..., 0, 0], maps[..., 0, 1], maps[..., 0, 2] = 1 - rate * own * pull, rate * before, rate * own
    maps[..., 1, :] = -pull, momentum, 1.0
    maps[..., 2, 2] = 1.0
    return maps


def _alike(
    maps: Callable[[Numbers], Numbers], rates: Numbers, last: NDArray[np.int64], each: NDArray[np.int64]
) -> Iterator[Numbers]:
    """The maps [..., 3, 3] of the epochs, in turn: as many squares as the steps of one have digits."""
    for epoch in range(rates.shape[-1]):
        left = np.where(epoch < last, each, 0)[..., 0]
        square, power = maps(rates[..., epoch]), np.broadcast_to(np.eye(3), (*left.shape, 3, 3))
        while left.any():
            power = np.where((left % 2 == 1)[..., None, None], _times(square, power), power)
            left, square = left // 2, _times(square, square)
        yield power


def _times(one: Numbers, other: Numbers) -> Numbers:
    """The products of matrices. Unlike those of BLAS, they do not depend on which others are computed with them."""
    first, second, third = (one[..., :, [k]] * other[..., [k], :] for k in range(3))
    product: Numbers = first + second + third
    return product


def _chunks(
    maps: Callable[[Numbers], Numbers], rates: Numbers, last: NDArray[np.int64], count: NDArray[np.int64], curve: Curve
) -> Iterator[Numbers]:
    """The maps [..., 3, 3] of some steps after the other, each at a rate of its own."""
    each, most = count // last, int(count.max(initial=0))
    for first in range(0, most, _TOGETHER):
        step = np.arange(first, min(first + _TOGETHER, most))
        rate = np.take_along_axis(rates, np.minimum(step // each.clip(1), last - 1), axis=-1) * curve(step, each)
        some = np.where((step < count)[..., None, None], maps(rate), np.eye(3))
        while (left := some.shape[-3]) > 1:  # in pairs, the later one on the left
            pairs = _times(some[..., 1::2, :, :], some[..., 0 : left - 1 : 2, :, :])
            some = np.concatenate([pairs, some[..., left - left % 2 :, :, :]], axis=-3)
        yield some[..., 0, :, :]
