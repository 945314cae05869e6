"""Losses, metrics and models as users get them wrong."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def total(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is the sum over a mini-batch."""
    return cross_entropy(outputs, targets, reduction="sum")


def number(outputs: Tensor, targets: Tensor) -> float:
    """A loss that is no tensor."""
    return round(cross_entropy(0 * outputs, targets).item(), 2)


def detached(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss without gradient."""
    return cross_entropy(outputs, targets).detach()


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number per class."""
    return outputs.mean(0) + 0 * targets.sum()


def undefined(outputs: Tensor, targets: Tensor) -> Tensor:
    """The logarithm of negative numbers."""
    return torch.log(-outputs.abs()).mean(1) + targets


def alone(outputs: Tensor) -> Tensor:
    """Without targets."""
    return outputs.mean()


def raising(outputs: Tensor, targets: Tensor) -> Tensor:
    """Fails."""
    return {"outputs": outputs, "targets": targets}["weights"]


def nothing() -> None:
    """No model."""


NUMBER = 3
"""No function."""


class Base(nn.Module):
    """A model that would be right."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> object:
        """Logits."""
        return self.last(x)


class Pair(Base):
    """Two outputs."""

    def forward(self, x: Tensor) -> object:
        logits = self.last(x)
        return logits.softmax(1), logits


class Probabilities(Base):
    """A softmax in front of a loss that has its own."""

    def forward(self, x: Tensor) -> object:
        return self.last(x).softmax(1)


class Classes(Base):
    """The class rather than logits."""

    def forward(self, x: Tensor) -> object:
        return self.last(x).argmax(1)


class Wrong(Base):
    """An attribute that is not there."""

    def forward(self, x: Tensor) -> object:
        return self.lats(x)


class Mixed(Base):
    """Samples of another dtype than the weights."""

    def forward(self, x: Tensor) -> object:
        return self.last(x.double())


class Fixed(Base):
    """Without gradients."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> object:
        return self.last(x)


class Frozen(Base):
    """Nothing to train."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Infinite(Base):
    """A division by zero."""

    def forward(self, x: Tensor) -> object:
        return self.last(x) / 0
