"""The mean of the clients' weights, formed where they train: the same to the bit in any order of addition."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.local.native import library, network

_COARSE, _FINER = 2.0**26, 2.0**33
_AT_ONCE = 1 << 18
"""Numbers that are summed together: more would not stay in a cache."""


def exact_mean(w: Tensor, shares: Tensor, threads: int = 1) -> Tensor:
    """[2, D], float64: two parts of the sum of weights [k, D] times shares [k], which belong together.

    The first has the multiples of 2^-26 in every addend, and the second the multiples of 2^-59 in what is left. Sums of
    such multiples are exact, while the mean is below 2^27 and for two million clients, so their order does not matter.
    Small numbers are not lost among many clients: the error of each addend is at most 2^-60.
    """
    scaled = shares * _COARSE
    loaded = library.load()
    if loaded is not None and w.device.type == "cpu":
        made = network.exact_mean(loaded, w, scaled, threads)
        if made is not None:
            return made
    return _in_pytorch(w, scaled)


def _in_pytorch(w: Tensor, scaled: Tensor) -> Tensor:
    """The same, also of numbers that are too large for the kernel; the bits are equal."""
    total = w.new_zeros(2, w.shape[1], dtype=torch.float64)
    rows = max(1, _AT_ONCE // max(1, w.shape[1]))
    for some, share in zip(torch.split(w, rows), torch.split(scaled[:, None], rows), strict=True):
        addends = some.to(torch.float64, copy=True).mul_(share)
        coarse = addends.round()
        total[0] += coarse.sum(0)
        total[1] += addends.sub_(coarse).mul_(_FINER).round_().sum(0)
    total[1] /= _FINER
    return total.div_(_COARSE)
