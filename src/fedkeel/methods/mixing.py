"""The weights of FedASMU and FedSSMU, and how a loss changes with their control parameters: the papers' equations."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import Tensor

from fedkeel.methods.server import Updates
from fedkeel.methods.types import Reading

Number = TypeVar("Number", float, Tensor)

TINY = 1e-6
"""The literal reading's ln(sigma) is taken no lower than here, so that it is finite at sigma = 0."""


def importance(root: Number, staleness: Number, lambda_: Number, sigma: Number, iota: Number) -> Number:
    """xi of Eq. 2, given the number under the root (the version t from 1) and the staleness t - o + 1."""
    xi: Number = lambda_ / (root**0.5 * staleness**sigma) + iota
    return xi


def freshness(root: Number, staleness: Number, gamma: Number, upsilon: Number) -> Number:
    """phi of Eq. 10, never negative, given the number under the root (g from 1) and g - o + 1."""
    phi: Number = gamma / root**0.5 * (1 - upsilon / staleness**0.5)
    return phi * (phi > 0)


def saturated(importance: Number, mu: float) -> Number:
    """The weight in [0, 1) of an importance xi or phi: mu xi / (1 + mu xi)."""
    weight: Number = mu * importance / (1 + mu * importance)
    return weight


def server_gradients(
    along: float,
    xi: float,
    root: float,
    staleness: float,
    lambda_: float,
    sigma: float,
    mu: float,
    reading: Reading = "practical",
) -> tuple[float, float, float]:
    """dF/dlambda, dF/dsigma and dF/diota of a model that was mixed with weight alpha(xi), Eq. 4 and 5.

    `along` is <dF/dw, w_upload - w_before>; `root` and `staleness` are those of that mixing. Erratum (`literal`): Eq. 5
    has ln(sigma) for lambda ln(staleness) in dF/dsigma.
    """
    inner = mu / (1 + mu * xi) ** 2 * along
    by_lambda = inner / (root**0.5 * staleness**sigma)
    factor = math.log(max(sigma, TINY)) if reading == "literal" else lambda_ * math.log(staleness)
    return by_lambda, -factor * by_lambda, inner


def device_gradients(
    along: Number, root: Number, staleness: Number, gamma: Number, upsilon: Number, mu: float
) -> tuple[Number, Number]:
    """dF/dgamma and dF/dupsilon of a merge (below Eq. 11), given `along` = <dF/dw after it, w_g - w before it>."""
    phi = freshness(root, staleness, gamma, upsilon)
    inner = mu / (1 + mu * phi) ** 2 * along / root**0.5
    return inner * (1 - upsilon / staleness**0.5), -inner * gamma / staleness**0.5


def own_displacement(update: Updates) -> Tensor:
    """[D], the displacement by a job's own SGD steps: w_i - w_o, without the fresh model that it merged.

    With a merge of weight beta after a part p of its path: (w_i - w_o - beta (w_g - w_o)) / (1 - beta p), which is
    exact for a constant gradient. At a constant rate and without momentum, p = l* / L.
    """
    moved = update.delta[0]
    if update.slot is None or update.fresh is None or not int(update.slot) or "merge_weight" not in update.messages:
        return moved
    beta = float(update.messages["merge_weight"])
    steps = update.steps // update.epochs * update.slot
    before = update.length_of(update.lr, update.slot, steps)
    moved = moved.sub_(update.fresh.w[0] - update.start[0], alpha=beta)
    return moved.div_(1 - beta * float(before / update.length))
