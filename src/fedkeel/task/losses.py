"""Losses: of each sample, their mean, and for the usual ones the slope in the model's outputs in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedkeel.errors import FedkeelError

IGNORED = -100
"""The target of a token that does not count, as in PyTorch."""


class Loss:
    """Of outputs `z` and targets `y`, whose first axis is the sample."""

    closed = False
    """Whether `slope` is there."""
    softmax = False
    """Whether it is the plain cross-entropy behind a softmax, one class per sample."""
    by_sample = True
    """Whether each sample has a loss of its own."""

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        """[b], of each sample."""
        raise NotImplementedError

    def mean(self, z: Tensor, y: Tensor) -> Tensor:
        """Over the samples."""
        return self.each(z, y).mean()

    def sum(self, z: Tensor, y: Tensor) -> Tensor:
        """Over the samples."""
        return self.each(z, y).sum()

    def slope(self, z: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Of stacks z [k, b, ...] and y [k, b, ...]: (losses [k, b], gradient in z of their sum by weights [k, b])."""
        raise NotImplementedError


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Of one class per sample; z [b, classes], y [b]."""

    smoothing: float = 0.0
    closed = True

    @property
    def softmax(self) -> bool:  # type: ignore[override]
        """Native kernels know it without smoothing."""
        return not self.smoothing

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(z, y, reduction="none", label_smoothing=self.smoothing)

    def mean(self, z: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(z, y, label_smoothing=self.smoothing)

    def sum(self, z: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(z, y, reduction="sum", label_smoothing=self.smoothing)

    def slope(self, z: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        log_p = z.log_softmax(2)
        label = y.unsqueeze(2)
        losses = log_p.gather(2, label).squeeze(2).neg_()
        if self.smoothing:
            losses = losses.mul_(1 - self.smoothing).sub_(log_p.mean(2), alpha=self.smoothing)
        slopes = log_p.exp_().scatter_(2, label, self.smoothing - 1.0, reduce="add")
        if self.smoothing:
            slopes.sub_(self.smoothing / z.shape[2])
        return losses, slopes.mul_(weights.unsqueeze(2))


SOFTMAX = CrossEntropy()


@dataclass(frozen=True)
class TokenCrossEntropy(Loss):
    """Of one class per token; z [b, length, classes], y [b, length]; a sample's loss is the mean of its tokens'."""

    smoothing: float = 0.0

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        told = {"reduction": "none", "label_smoothing": self.smoothing, "ignore_index": IGNORED}
        losses = functional.cross_entropy(z.flatten(0, 1), y.flatten(), **told).view(y.shape)  # type: ignore[arg-type]
        return losses.sum(1) / (y != IGNORED).sum(1).clamp(min=1)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Of yes or no; z [b] or [b, 1], or [b, 2] with a logit for each answer; or of several, z and y [b, labels].

    A sample's loss is the mean over its labels.
    """

    smoothing: float = 0.0
    closed = True

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        logits = one_logit(z, y)
        losses = functional.binary_cross_entropy_with_logits(logits, self._wanted(logits, y), reduction="none")
        return losses.flatten(1).mean(1) if losses.dim() > 1 else losses

    def _wanted(self, logits: Tensor, y: Tensor) -> Tensor:
        wanted = y.to(logits.dtype)
        return wanted * (1 - self.smoothing) + self.smoothing / 2 if self.smoothing else wanted

    def slope(self, z: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        logits = one_logit(z, y)
        wanted = self._wanted(logits, y)
        losses = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        slopes = logits.sigmoid().sub_(wanted)
        if y.dim() > 2:
            return losses.mean(2), slopes.mul_((weights / y.shape[2]).unsqueeze(2))
        slopes.mul_(weights)
        return losses, (torch.stack([-slopes, slopes], 2) if z.shape[2] == 2 else slopes.view(z.shape))


@dataclass(frozen=True)
class Regression(Loss):
    """Of real numbers: z and y [b] or [b, k]; a sample's loss is the mean over its numbers."""

    of: Callable[[Tensor], Tensor]
    """Of an error."""
    derivative: Callable[[Tensor], Tensor]
    closed = True

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        losses = self.of(z.reshape(y.shape) - y)
        return losses.flatten(1).mean(1) if losses.dim() > 1 else losses

    def slope(self, z: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        error = z - y.view(z.shape)
        return self.of(error).mean(2), self.derivative(error).mul_((weights / z.shape[2]).unsqueeze(2))


@dataclass(frozen=True)
class Own(Loss):
    """A function of the user's: of outputs and targets, one loss per sample or their mean."""

    function: Callable[[Tensor, Tensor], Any]
    by_sample: bool = True

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        if not self.by_sample:
            return self.mean(z, y).expand(len(y))
        return self._called(z, y)

    def mean(self, z: Tensor, y: Tensor) -> Tensor:
        return self._called(z, y).mean()

    def _called(self, z: Tensor, y: Tensor) -> Tensor:
        losses = self.function(z, y)
        expected = torch.Size([len(y)] if self.by_sample else [])
        if not isinstance(losses, Tensor) or losses.shape != expected:
            got = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise FedkeelError(
                f"the loss returned {got} for {len(y)} samples; it must return one loss per sample each time, or "
                "always their mean"
            )
        return losses


def squared() -> Regression:
    """The square of an error."""
    return Regression(torch.square, lambda error: 2 * error)


def absolute() -> Regression:
    """The size of an error."""
    return Regression(torch.abs, torch.sign)


def huber(delta: float) -> Regression:
    """Half the square of an error up to `delta`, then linear."""
    return Regression(
        lambda error: functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta),
        lambda error: error.clamp(-delta, delta),
    )


def one_logit(z: Tensor, y: Tensor) -> Tensor:
    """Outputs in the shape of the targets; of two logits for no and yes, the difference says the same."""
    if z.dim() == y.dim() + 1 and z.shape[-1] == 2:
        return z[..., 1] - z[..., 0]
    return z.reshape(y.shape)
