"""What clients' mini-batches say about weights: of one client by autograd, or of a whole stack at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkeel import streams
from fedkeel.errors import FedkeelError
from fedkeel.experiment import LocalSettings
from fedkeel.local.batches import Batch, Batches
from fedkeel.local.loop import Step
from fedkeel.params import FlatModel


class _Oracle:
    """The current mini-batch, the losses seen so far, and what becomes of a raw gradient."""

    def __init__(self, batches: Batches, local: LocalSettings) -> None:
        self._batches = batches
        self._local = local
        self._batch: Batch | None = None
        self._fresh = False
        self._losses: list[Tensor] = []
        self._sizes: list[NDArray[np.int64]] = []

    def steps(self) -> Iterator[Step]:
        """Make one mini-batch after the other current."""
        for batch in self._batches:
            self._batch, self._fresh = batch, True
            yield self._step(batch)
        self._batch = None

    def _step(self, batch: Batch) -> Step:
        raise NotImplementedError

    def _current(self) -> Batch:
        if self._batch is None:
            raise FedkeelError("oracle.grad was asked for outside of a step, where no mini-batch is current")
        return self._batch

    def _count(self, losses: Tensor) -> None:
        """The first gradient of a step is the one whose losses count: [k, b] of the samples."""
        if self._fresh:
            self._fresh = False
            self._losses.append(losses)
            self._sizes.append(self._current().sizes)

    def _finish(self, g: Tensor, w: Tensor) -> Tensor:
        """Clipped, then decayed."""
        if self._local.clip_norm is not None:
            g = g * (self._local.clip_norm / (g.norm(dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0)
        if self._local.weight_decay:
            g = g.add_(w, alpha=self._local.weight_decay)
        return g

    @property
    def loss(self) -> NDArray[np.float64]:
        """[C], mean loss over the samples seen in training, each at the time it was seen."""
        total = np.zeros(len(self._batches.steps))
        seen = np.zeros(len(self._batches.steps))
        for losses, sizes in self._summed():
            total[: len(sizes)] += losses
            seen[: len(sizes)] += sizes
        if not seen.all():
            raise FedkeelError("the client rule asked for no gradient in a whole job, so there is no training loss")
        return total / seen

    def _summed(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        """Sums [k] over the samples of mini-batches, and how many they are; at once where all are whole."""
        pairs = list(zip(self._losses, self._sizes, strict=True))
        everybody = len(self._batches.steps)
        if pairs and all(len(sizes) == everybody and (sizes == each.shape[1]).all() for each, sizes in pairs):
            summed = torch.cat(self._losses, dim=1).double().sum(1).cpu().numpy()
            yield summed, np.sum(self._sizes, axis=0)
            return
        for losses, sizes in pairs:
            real = torch.arange(losses.shape[1]) < torch.from_numpy(sizes)[:, None]
            yield torch.where(real, losses.double().cpu(), 0.0).sum(1).numpy(), sizes


class ClientOracle(_Oracle):
    """One client and one flat model, by autograd; dropout draws from streams named by (seed, round, client, epoch)."""

    def __init__(
        self, model: FlatModel, batches: Batches, local: LocalSettings, seed: int, round: int, client: int
    ) -> None:
        super().__init__(batches, local)
        self._model = model
        self._where = (seed, "dropout", round, client)
        self._dropout = 0

    def _step(self, batch: Batch) -> Step:
        assert isinstance(batch.epochs, int)
        assert isinstance(batch.places, int)
        self._dropout = (streams.key(*self._where, batch.epochs) >> 1) ^ batch.places
        return Step(batch.epochs)

    def grad(self, w: Tensor) -> Tensor:
        """Gradient [D] of the current mini-batch's mean loss at `w`, clipped, plus weight decay.

        Several gradients in one step see the same dropout masks; the first is the step's loss, and it alone moves
        batch-norm statistics.
        """
        batch = self._current()
        kept = None if self._fresh else self._model.buffers
        # Dropout inside a module can only draw from torch's global generators, which the trainer restores.
        torch.default_generator.manual_seed(self._dropout)  # torch.manual_seed takes a millisecond without CUDA
        if w.is_cuda:
            torch.cuda.manual_seed(self._dropout)
        self._model.load(w)
        with torch.enable_grad():
            loss = cross_entropy(self._model.forward(batch.x[0]), batch.y[0])
            parts = torch.autograd.grad(loss, self._model.parameters, materialize_grads=True)
        self._count(loss.detach().expand(1, len(batch.y[0])))
        if kept is not None:
            self._model.load(w, kept)
        return self._finish(torch.cat([p.reshape(-1) for p in parts]), w)


class Gradient(Protocol):
    """Gradients of many clients at once.

    One that can also make a whole step cheaper than a gradient has a method `descend(w, x, y, weights, out)`, which
    returns the losses and puts `w` minus the gradient into `out`.
    """

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(Losses [k, b], gradient [k, D]) at `w` [k, D] of mini-batches x [k, b, ...] and y [k, b].

        The gradient is that of the sum over a client's samples of loss times weight [k, b].
        """
        ...


class StackOracle(_Oracle):
    """A stack of clients, all at once, for models without chance or memory in their forward pass."""

    def __init__(self, gradient: Gradient, batches: Batches, local: LocalSettings) -> None:
        super().__init__(batches, local)
        self._gradient = gradient
        self._weights: Tensor | None = None
        self._ragged = False

    def _step(self, batch: Batch) -> Step:
        if batch.ragged or self._ragged or self._weights is None or self._weights.shape != batch.y.shape:
            self._ragged = batch.ragged
            sizes = torch.from_numpy(batch.sizes).to(batch.x.device)[:, None]
            real = torch.arange(batch.y.shape[1], device=batch.x.device) < sizes
            self._weights = torch.where(real, 1 / sizes.double(), 0.0)
        if isinstance(batch.epochs, int):
            return Step(batch.epochs, len(batch.sizes))
        return Step(torch.from_numpy(batch.epochs).to(batch.x.device), len(batch.sizes))

    def _mean(self, w: Tensor) -> Tensor:
        """The weights [k, b] that make a sum over samples the mean of a client's own."""
        assert self._weights is not None
        if self._weights.dtype != w.dtype:
            self._weights = self._weights.to(w.dtype)
        return self._weights

    def grad(self, w: Tensor) -> Tensor:
        """Gradients [k, D] of the current mini-batches' mean losses at `w` [k, D], clipped, plus weight decay."""
        batch = self._current()
        losses, g = self._gradient(w, batch.x, batch.y, self._mean(w))
        self._count(losses)
        return self._finish(g, w)

    @property
    def descend(self) -> Callable[[Tensor, Tensor, Tensor], None] | None:
        """`descend(w, rate, out)`: out <- w - rate * grad(w), where that is cheaper in one go."""
        fused = getattr(self._gradient, "descend", None)
        if fused is None or self._local.clip_norm is not None or self._local.weight_decay:
            return None

        def descend(w: Tensor, rate: Tensor, out: Tensor) -> None:
            batch = self._current()
            self._count(fused(w, batch.x, batch.y, self._mean(w) * rate, out))

        return descend
