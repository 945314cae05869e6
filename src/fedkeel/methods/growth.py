"""How updates grow with the work behind them: in proportion at first, later like a logarithm.

Let gradients be in proportion to the loss, |g| = k L, on a straight path on which L falls by |g|^2 ds. Then an update
after a path S is ln(1 + x) / k long with x = k^2 L_0 S, and ln(1 + x) = |Delta|^2 / (S Lbar), where Lbar is the mean
loss on the way. So an update, its path and its loss tell how it would have continued. For cross-entropy, |g| is rather
like 1 - e^-L, which hardly depends on the loss near chance. So Lbar is replaced by e^Lbar - 1, which is the same where
Lbar is small. Devices differ less than this suggests, so x / S is halfway (in logarithms) between a device's own and
the round's median. One factor kappa on the exponent is left. It is fitted so that completed updates are as long as
finished ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEEPEST, FLATTEST = 50.0, 1e-9
"""Bounds of ln(1 + x): nothing grows any more, or all grow in proportion."""
LOG_KAPPAS = torch.arange(-40, 41, dtype=torch.float64) / 20
PRIOR = 0.7
"""Standard deviation of ln kappa before anything is known."""
SPREAD = 0.1
"""The prior standard deviation of the log-norms of finished updates in a round; it counts like two observations."""
PAST = 0.9
"""The share of earlier knowledge that stays after each round."""
NUMBERS = 3
"""How many numbers a record holds beside the gaps."""


def bend(square: Tensor, length: Tensor, loss: Tensor) -> Tensor:
    """ln(1 + x) for kappa = 1, given |Delta|^2, the path S and the mean loss on it."""
    return (square / (length * torch.expm1(loss))).nan_to_num(0.0)


def growth(bends: Tensor, length: Tensor, stretch: Tensor) -> Tensor:
    """ln(1 + x stretch) / ln(1 + x), the factor on updates [..., m] of a round when their paths are stretched."""
    rates = bends.clamp(FLATTEST, STEEPEST).expm1().div(length).log()
    x = length * ((rates + rates.quantile(0.5, dim=-1, keepdim=True)) / 2).exp()
    return torch.log1p(x * stretch) / torch.log1p(x)


def no_record(like: Tensor) -> Tensor:
    """[G + 3], what is known before the first round."""
    return torch.zeros(len(LOG_KAPPAS) + NUMBERS, dtype=torch.float64, device=like.device)


def recorded(record: Tensor, square: Tensor, bends: Tensor, length: Tensor, stretch: Tensor, late: Tensor) -> Tensor:
    """[G + 3], a record with one more round of updates [m], of which some are late.

    It holds, for each kappa, by how much the late ones would be longer than finished ones, as a difference of mean
    logarithms times its weight; then that weight, the sum of squares of finished ones around their mean, and its
    degrees of freedom. A difference of means of n and m has a variance in proportion to 1/n + 1/m, so its weight is
    n m / (n + m). Rounds without late or without finished updates say nothing.
    """
    logs = square.log() / 2
    finished, late = logs[~late & logs.isfinite()], late & logs.isfinite()
    if not len(finished) or not bool(late.any()):
        return record
    kappas, middle = LOG_KAPPAS.exp().to(record), finished.mean()
    gaps = growth(kappas[:, None] * bends, length, stretch)[:, late].log() + logs[late] - middle
    squares, weight = float((finished - middle).square().sum()), 1 / (1 / gaps.shape[1] + 1 / len(finished))
    numbers = record.new_tensor([weight, squares, len(finished) - 1])
    return PAST * record + torch.cat([weight * gaps.mean(1), numbers])


def kappa(record: Tensor) -> Tensor:
    """The most likely kappa: it closes the mean gap, weighed against chance and against the prior of kappa."""
    gaps, (weight, squares, freedom), logs = record[:-NUMBERS], record[-NUMBERS:], LOG_KAPPAS.to(record)
    variance = (squares + 2 * SPREAD**2) / (freedom + 2)
    cost = gaps.square() / (weight.clamp(min=0.5) * variance) + (logs / PRIOR).square()
    return logs[cost.argmin()].exp()
