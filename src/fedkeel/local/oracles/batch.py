"""The part of both oracles that is the same: the current mini-batch, the losses, and what becomes of a gradient."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fedkeel.errors import FedkeelError
from fedkeel.local.batches import Batch, Batches
from fedkeel.local.loop import Step
from fedkeel.local.settings import LocalSettings


class BatchOracle:
    """The current mini-batch, the losses seen so far, and what becomes of a raw gradient."""

    def __init__(self, batches: Batches, local: LocalSettings, moving: Tensor | None) -> None:
        """`moving` [D] is one where weights are trained and zero elsewhere, if not all are."""
        self._batches = batches
        self._local = local
        self._moving = moving
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
            raise FedkeelError("a gradient was asked for outside of a step, where no mini-batch is current")
        return self._batch

    def _count(self, losses: Tensor) -> None:
        """The first gradient of a step is the one whose losses count: [k, b] of the samples."""
        if self._fresh:
            self._fresh = False
            self._losses.append(losses)
            self._sizes.append(self._current().sizes)

    def loss_grad(self, w: Tensor) -> Tensor:
        """Gradient of the current mini-batch's mean loss at `w` [..., D], as it is."""
        g = self._raw(w)
        return g if self._moving is None else g * self._moving

    def _raw(self, w: Tensor) -> Tensor:
        raise NotImplementedError

    def grad(self, w: Tensor, at: Tensor | None = None) -> Tensor:
        """Gradient of the current mini-batch's mean loss at `at` or `w`, clipped, plus weight decay of `w`."""
        return self._finish(self._raw(w if at is None else at), w)

    def _finish(self, g: Tensor, w: Tensor) -> Tensor:
        """Of what moves: clipped, then decayed."""
        if self._moving is not None:
            g = g * self._moving
        if self._local.clip_norm is not None:
            g = g * (self._local.clip_norm / (g.norm(dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0)
        if self._local.weight_decay:
            g = g.add_(w if self._moving is None else w * self._moving, alpha=self._local.weight_decay)
        return g

    def _class_sums(self, z: Tensor, y: Tensor, sizes: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Sums [k, classes, F] and counts [k, classes] over samples [k, b], of which each client has some."""
        real = torch.arange(y.shape[1], device=y.device) < torch.from_numpy(sizes).to(y.device)[:, None]
        belongs = (one_hot(y, self._batches.classes) * real[..., None]).to(z.dtype)
        return belongs.mT @ z, belongs.sum(1)

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
