"""What one client's mini-batches say, by autograd: the reference for everything faster."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkeel import streams
from fedkeel.local.batches import Batch, Batches
from fedkeel.local.loop import Step
from fedkeel.local.oracles.batch import BatchOracle
from fedkeel.local.settings import LocalSettings
from fedkeel.methods.oracle import Penalty, Sample
from fedkeel.params import FlatModel, with_features


class ClientOracle(BatchOracle):
    """One client and one flat model, by autograd; dropout draws from streams named by (seed, wave, client, epoch)."""

    def __init__(
        self,
        model: FlatModel,
        batches: Batches,
        local: LocalSettings,
        seed: int,
        wave: int,
        client: int,
        moving: Tensor | None = None,
    ) -> None:
        super().__init__(batches, local, moving)
        self._model = model
        self._seed = seed
        self._where = wave, client
        self._dropout = 0

    def _step(self, batch: Batch) -> Step:
        assert isinstance(batch.epochs, int)
        assert isinstance(batch.places, int)
        self._dropout = (streams.key(self._seed, "dropout", *self._where, batch.epochs) >> 1) ^ batch.places
        return Step(batch.epochs, begins=batch.places == 0)

    @property
    def begins(self) -> Tensor:
        """[1], the epoch that begins with the current mini-batch, or -1."""
        batch = self._current()
        return torch.tensor([batch.epochs if batch.places == 0 else -1], device=batch.x.device)

    @property
    def buffers(self) -> Tensor:
        """[B], as they are now."""
        return self._model.buffers

    def restore(self, buffers: Tensor) -> None:
        """Go on with these."""
        self._model.load(self._model.w, buffers)

    def _raw(self, w: Tensor) -> Tensor:
        """Several gradients in one step see the same dropout masks; the first is the step's loss, and it alone moves
        batch-norm statistics.
        """
        batch = self._current()
        loss, g = self._autograd(w, batch.x[0], batch.y[0], self._fresh)
        self._count(loss.expand(1, len(batch.y[0])))
        return g

    def grad_with(self, w: Tensor, penalty: Penalty, *given: Tensor) -> Tensor:
        """As `grad`, with a penalty on the features that the head sees."""
        batch = self._current()
        loss, g = self._autograd(w, batch.x[0], batch.y[0], self._fresh, lambda z: penalty(z, *given))
        self._count(loss.expand(1, len(batch.y[0])))
        return self._finish(g, w)

    def _autograd(
        self, w: Tensor, x: Tensor, y: Tensor, moves: bool, penalty: Penalty | None = None
    ) -> tuple[Tensor, Tensor]:
        """(Mean loss without the penalty, gradient [D] with it); statistics stay as they are unless it `moves` them."""
        kept = None if moves else self._model.buffers
        self._seed_dropout(w)
        self._model.load(w)
        with torch.enable_grad():
            if penalty is None:
                loss = total = cross_entropy(self._model.forward(x), y)
            else:
                logits, z = with_features(self._model.module, lambda: self._model.forward(x))
                loss = cross_entropy(logits, y)
                total = loss + penalty(z).mean()
            parts = torch.autograd.grad(total, self._model.parameters, materialize_grads=True)
        if kept is not None:
            self._model.load(w, kept)
        return loss.detach(), torch.cat([p.reshape(-1) for p in parts])

    def _seed_dropout(self, w: Tensor) -> None:
        """Dropout inside a module can only draw from torch's global generators, which the trainer restores."""
        torch.default_generator.manual_seed(self._dropout)  # torch.manual_seed takes a millisecond without CUDA
        if w.is_cuda:
            torch.cuda.manual_seed(self._dropout)

    def full_grad(self, w: Tensor, rows: Tensor | None = None) -> Tensor:
        """Gradient [D] of the mean loss of all the client's samples, clipped, plus weight decay."""
        g = torch.zeros_like(w)
        dropout = self._dropout
        for number, (sizes, x, y) in enumerate(self._batches.whole(np.arange(1))):
            self._dropout = (streams.key(self._seed, "full gradient", *self._where) >> 1) ^ number
            g += self._autograd(w, x[0], y[0], False)[1] * (sizes[0] / self._batches.sizes[0])
        self._dropout = dropout
        return self._finish(g, w)

    def peek(
        self, w: Tensor, rows: Tensor | None, on: Sample = "batch", gradient: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """(Mean loss [1], its gradient [D] if wanted), which leave no trace."""
        batch = self._current()
        x, y = (batch.x, batch.y) if on == "batch" else self._batches.proxy(np.arange(1))
        if gradient:
            loss, g = self._autograd(w, x[0], y[0], False)
            return loss[None], g if self._moving is None else g * self._moving
        buffers = self._model.buffers
        self._seed_dropout(w)
        self._model.load(w)
        loss = cross_entropy(self._model.forward(x[0]), y[0])
        self._model.load(w, buffers)
        return loss[None], None

    def features(self, w: Tensor, buffers: Tensor) -> Tensor:
        """[b, F], what the head sees of the current mini-batch, in evaluation mode."""
        kept = self._model.buffers
        z = self._features(w, buffers, self._current().x[0])
        self._model.load(w, kept)
        return z

    def _features(self, w: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        self._model.load(w, buffers)
        self._model.module.eval()
        with torch.no_grad():
            _, z = with_features(self._model.module, lambda: self._model.forward(x))
        self._model.module.train()
        return z

    def class_means(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(Mean features [classes, F] of each class, samples of each [classes]), in evaluation mode."""
        buffers = self._model.buffers
        sums, counts = torch.zeros((), dtype=w.dtype), torch.zeros((), dtype=w.dtype)
        for sizes, x, y in self._batches.whole(np.arange(1)):
            more, seen = self._class_sums(self._features(w, buffers, x[0])[None], y, sizes)
            sums, counts = sums + more[0], counts + seen[0]
        return sums / counts.clamp(min=1)[:, None], counts
