"""What the mini-batches of a stack of clients say, all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.local.batches import Batch, Batches
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.loop import Step
from fedkeel.local.oracles.batch import BatchOracle
from fedkeel.local.settings import LocalSettings
from fedkeel.methods.course import Course
from fedkeel.methods.oracle import Penalty, Sample


class Gradient(Protocol):
    """Gradients of many clients at once.

    One that can also make a whole step cheaper than a gradient has a method `descend(w, x, y, weights, out, before)`,
    which returns the losses and puts `before` minus the gradient into `out`.
    """

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(Losses [k, b], gradient [k, D]) at `w` [k, D] of mini-batches x [k, b, ...] and y [k, b].

        The gradient is that of the sum over a client's samples of loss times weight [k, b].
        """
        ...


class StackOracle(BatchOracle):
    """A stack of clients, all at once, for models without chance or memory in their forward pass."""

    def __init__(
        self,
        gradient: Gradient,
        vmapped: Callable[[], VmappedGradient],
        batches: Batches,
        local: LocalSettings,
        moving: Tensor | None = None,
    ) -> None:
        super().__init__(batches, local, moving)
        self._gradient = gradient
        self._vmapped = vmapped
        self._weights: Tensor | None = None
        self._scratch: Tensor | None = None
        self._ragged = False

    def _step(self, batch: Batch) -> Step:
        if batch.ragged or self._ragged or self._weights is None or self._weights.shape != batch.y.shape:
            self._ragged = batch.ragged
            self._weights = _weights(batch.sizes, batch.sizes, batch.y)
        begins = bool(np.any(np.equal(batch.places, 0)))
        if isinstance(batch.epochs, int):
            return Step(batch.epochs, len(batch.sizes), begins)
        return Step(torch.from_numpy(batch.epochs).to(batch.x.device), len(batch.sizes), begins)

    @property
    def begins(self) -> Tensor:
        """[k, 1], the epoch that begins with each client's current mini-batch, or -1."""
        batch = self._current()
        begins = np.where(np.equal(batch.places, 0), batch.epochs, -1)
        return torch.from_numpy(np.broadcast_to(begins, (len(batch.sizes),)).copy()).to(batch.x.device)[:, None]

    def _mean(self, w: Tensor) -> Tensor:
        """The weights [k, b] that make a sum over samples the mean of a client's own."""
        assert self._weights is not None
        if self._weights.dtype != w.dtype:
            self._weights = self._weights.to(w.dtype)
        return self._weights

    @property
    def buffers(self) -> Tensor:
        """[C, 0]: such models have none."""
        return torch.zeros(len(self._batches.sizes), 0, dtype=torch.float64)

    def restore(self, buffers: Tensor) -> None:
        """Nothing to do."""

    def _raw(self, w: Tensor) -> Tensor:
        batch = self._current()
        losses, g = self._gradient(w, batch.x, batch.y, self._mean(w))
        self._count(losses)
        return g

    def grad_with(self, w: Tensor, penalty: Penalty, *given: Tensor) -> Tensor:
        """As `grad`, with a penalty on the features that the heads see."""
        batch = self._current()
        losses, g = self._vmapped().with_penalty(w, batch.x, batch.y, self._mean(w), penalty, given)
        self._count(losses)
        return self._finish(g, w)

    def full_grad(self, w: Tensor, rows: Tensor | None = None) -> Tensor:
        """Gradients [k, D] of the mean losses of all the clients' samples, clipped, plus weight decay."""
        g = torch.zeros_like(w, memory_format=torch.contiguous_format)
        chosen = np.arange(len(w)) if rows is None else rows.cpu().numpy()
        for sizes, x, y in self._batches.whole(chosen):
            g += self._gradient(w, x, y, _weights(sizes, self._batches.sizes[chosen], y).to(w.dtype))[1]
        return self._finish(g, w)

    def peek(
        self, w: Tensor, rows: Tensor | None, on: Sample = "batch", gradient: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """(Mean losses [r, 1], their gradients [r, D] if wanted) of the clients at these places."""
        assert rows is not None
        batch = self._current()
        if on == "batch":
            x, y, weights = batch.x[rows], batch.y[rows], self._mean(w)[rows]
        else:
            x, y = self._batches.proxy(rows.cpu().numpy())
            weights = torch.full_like(y, 1 / y.shape[1], dtype=w.dtype)
        losses, g = self._gradient(w, x, y, weights)
        return (losses * weights).sum(1, keepdim=True), g if self._moving is None else g * self._moving

    def features(self, w: Tensor, buffers: Tensor) -> Tensor:
        """[k, b, F], what the heads see of the current mini-batches."""
        return self._vmapped().features(w, self._current().x)

    def class_means(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(Mean features [k, classes, F] of each class, samples of each [k, classes])."""
        sums, counts = torch.zeros((), dtype=w.dtype), torch.zeros((), dtype=w.dtype)
        for sizes, x, y in self._batches.whole(np.arange(len(w))):
            more, seen = self._class_sums(self._vmapped().features(w, x), y, sizes)
            sums, counts = sums + more, counts + seen
        return sums / counts.clamp(min=1)[..., None], counts

    @property
    def descend(self) -> Callable[[Tensor, Tensor, Tensor, Course], None] | None:
        """`descend(w, rate, out, course)`: out <- w - rate * direction(grad(w), w), where that is cheaper in one go."""
        fused = getattr(self._gradient, "descend", None)
        if fused is None or self._local.clip_norm is not None or self._local.weight_decay or self._moving is not None:
            return None

        def descend(w: Tensor, rate: Tensor, out: Tensor, course: Course) -> None:
            batch = self._current()
            before = w if course.plain else course.before(w, rate, self._room(w))
            self._count(fused(w, batch.x, batch.y, self._mean(w) * (rate * course.share), out, before))

        return descend

    def _room(self, w: Tensor) -> Tensor:
        """Memory for vectors like `w`, the same as last time while the stack stays as it is."""
        if self._scratch is None or len(self._scratch) != len(w):
            self._scratch = w.new_empty(w.shape) if self._scratch is None else self._scratch[: len(w)]
        return self._scratch


def _weights(sizes: NDArray[np.int64], of: NDArray[np.int64], y: Tensor) -> Tensor:
    """[k, b], 1 / of for the first `sizes` samples of each client, 0 for the rest."""
    real = torch.arange(y.shape[1], device=y.device) < torch.from_numpy(sizes).to(y.device)[:, None]
    return torch.where(real, 1 / torch.from_numpy(of).to(y.device)[:, None].double(), 0.0)
