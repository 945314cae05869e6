"""How far local training leads: the length of a client's path, which makes updates comparable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Curve = Callable[[int | NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""`curve(step, each)`: the factor on the learning rate in a step of a job, counted from 0, where an epoch has `each`
steps."""


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
    change from epoch to epoch, and with a `curve` from step to step; every epoch has steps / epochs steps.
    """
    rates, last, count = lr.double().cpu().numpy(), epochs.cpu().numpy(), steps.cpu().numpy()
    each = count // last
    if not momentum and not pull and curve is None:
        done = np.arange(rates.shape[-1]) < last
        length = np.where(done, rates, 0.0).sum(-1, keepdims=True) * each
    else:
        length, velocity = np.zeros(count.shape), np.zeros(count.shape)
        for step in range(int(count.max(initial=0))):
            rate = np.take_along_axis(rates, np.minimum(step // each, last - 1), axis=-1)
            rate = rate if curve is None else rate * curve(step, each)
            velocity, own = momentum * velocity + 1 - pull * length, 1 - pull * length
            moved = own + momentum * velocity if nesterov else velocity
            length = np.where(step < count, length + rate * moved, length)
    return torch.from_numpy(length).to(lr)
