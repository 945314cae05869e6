"""How far local training leads: the length of a client's path, which makes updates comparable."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def path_length(lr: Tensor, epochs: Tensor, steps: Tensor, momentum: float = 0.0, pull: float = 0.0) -> Tensor:
    """[..., 1]: with the same gradient g in every step, start - w would be this number times g.

    FedNova's ||a_i||_1 times the learning rate: K lr for plain SGD; momentum m makes a gradient count m, m^2, ... again
    in the steps after its own, and a pull mu (w - start) takes a part of the way back in every step. `lr` [..., E] may
    change from epoch to epoch; every epoch has steps / epochs steps.
    """
    rates, last, count = lr.double().cpu().numpy(), epochs.cpu().numpy(), steps.cpu().numpy()
    each = count // last
    if not momentum and not pull:
        done = np.arange(rates.shape[-1]) < last
        length = np.where(done, rates, 0.0).sum(-1, keepdims=True) * each
    else:
        length, velocity = np.zeros(count.shape), np.zeros(count.shape)
        for step in range(int(count.max(initial=0))):
            rate = np.take_along_axis(rates, np.minimum(step // each, last - 1), axis=-1)
            velocity = momentum * velocity + 1 - pull * length
            length = np.where(step < count, length + rate * velocity, length)
    return torch.from_numpy(length).to(lr)
