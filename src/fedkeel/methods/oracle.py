"""What a client's data says about weights; rules see the data only through this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from torch import Tensor

Penalty = Callable[..., Tensor]
"""`penalty(features, *given)` [b]: what is added to the loss of each of a mini-batch's samples."""


Sample = Literal["batch", "proxy"]
"""Which samples a loss is computed on: the current mini-batch, or a fixed sample of other clients' data."""


class Oracle(Protocol):
    """What the data of k clients says about weights `w` [k, D]; in a step, one mini-batch of each is current.

    Where fewer weights are given than there are clients, they belong to the first ones.

    Every answer is a new tensor that the rule may change.
    """

    def grad(self, w: Tensor, at: Tensor | None = None) -> Tensor:
        """Gradient of the current mini-batch's mean loss at `at` (or `w`), clipped, plus weight decay of `w`."""
        ...

    def loss_grad(self, w: Tensor) -> Tensor:
        """The same gradient at `w`, neither clipped nor with weight decay."""
        ...

    def grad_with(self, w: Tensor, penalty: Penalty, *given: Tensor) -> Tensor:
        """As `grad`, with a penalty on the features that the head sees; `given` [k, b, F] has one row per sample."""
        ...

    def features(self, w: Tensor, buffers: Tensor) -> Tensor:
        """[k, b, F], what the head sees of the current mini-batch, in evaluation mode and without a gradient."""
        ...

    def full_grad(self, w: Tensor) -> Tensor:
        """Gradient of the mean loss of all the client's samples, clipped, plus weight decay; leaves statistics alone.

        Mini-batch by mini-batch in training mode, so that batch norm and dropout see what they see in training.
        """
        ...

    def class_means(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(Mean features [k, classes, F] of each class in the client's samples, number of samples [k, classes])."""
        ...

    def peek(self, w: Tensor, on: Sample = "batch", gradient: bool = True) -> tuple[Tensor, Tensor | None]:
        """(Mean loss [k, 1], its gradient [k, D] if wanted) at `w`, not counted as training and without weight decay.

        Of the current mini-batch, or of samples that belong to other clients (`proxy`). Statistics stay as they are.
        """
        ...

    def pick(self, rows: Tensor) -> Oracle:
        """The oracle of some clients of the stack, by their positions; its use leaves no trace in training."""
        ...

    @property
    def buffers(self) -> Tensor:
        """[k, B], the batch-norm statistics as they are now."""
        ...

    @property
    def begins(self) -> Tensor:
        """[k, 1], the epoch that begins with the current mini-batch, from 0, or -1 in the middle of one."""
        ...
