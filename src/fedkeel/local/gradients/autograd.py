"""The gradient of one client by plain autograd: the reference for everything faster, and the way of every model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkeel.errors import FedkeelError
from fedkeel.local import generators
from fedkeel.local.batches import Batch
from fedkeel.local.gradients.gradient import Gradient, Penalised
from fedkeel.params import FlatModel, with_features
from fedkeel.task.losses import SOFTMAX, Loss


class AutogradGradient(Gradient):
    """A stack of one on a module that is its own, which may have dropout and batch norm.

    Several gradients of one mini-batch see the same dropout masks, and only the first moves batch-norm statistics.
    """

    alone = True

    def __init__(
        self, module: nn.Module, channels_last: bool = False, half: bool = False, loss: Loss = SOFTMAX
    ) -> None:
        """`half`: whether the module computes in bfloat16, with weights, losses and gradients as they are."""
        self._model = FlatModel(module.train(), channels_last)
        self._half = half
        self._loss = loss

    def _forward(self, x: Tensor) -> Tensor:
        """In training."""
        if not self._half:
            return self._model.forward(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return self._model.forward(x).to(self._model.w.dtype)

    @property
    def buffers(self) -> Tensor:  # type: ignore[override]
        return self._model.buffers.unsqueeze(0)

    def restore(self, buffers: Tensor) -> None:
        self._model.load(self._model.w, buffers[0])

    def __call__(self, w: Tensor, batch: Batch, penalty: Penalised = None) -> tuple[Tensor, Tensor]:
        """The mean loss stands for that of every sample."""
        kept = None if batch.fresh else self._model.buffers
        self._load(w, batch)
        x, y = batch.x[0], batch.y[0]
        with torch.enable_grad():
            if penalty is None:
                loss = total = self._mean(self._forward(x), y, batch)
            else:
                outputs, z = with_features(self._model.module, lambda: self._forward(x))
                loss = self._mean(outputs, y, batch)
                total = loss + penalty[0](z.to(outputs.dtype), *(each[0] for each in penalty[1])).mean()
            parts = torch.autograd.grad(total, self._model.parameters, materialize_grads=True)
        if kept is not None:
            self._model.load(w[0], kept)
        g = torch.cat([part.reshape(1, -1) for part in parts], dim=1)
        return loss.detach().expand(1, len(y)), g if batch.share == 1 else g * batch.share

    def _mean(self, outputs: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """The loss of the mini-batch, in which samples may count differently."""
        if batch.importance is None:
            return self._loss.mean(outputs, y)
        return (self._loss.each(outputs, y) * batch.importance[0]).mean()

    def _load(self, w: Tensor, batch: Batch) -> None:
        """Dropout inside a module can only draw from torch's global generators, which the trainer restores."""
        if w.shape[1:] != self._model.w.shape:
            raise FedkeelError(f"the oracle's weights must be [1, {len(self._model.w)}]; got {list(w.shape)}")
        generators.seed(batch.masks)
        if w.is_cuda:
            torch.cuda.manual_seed(batch.masks)
        self._model.load(w[0])

    def mean(self, losses: Tensor, batch: Batch) -> Tensor:
        return losses[:, :1]

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        kept = self._model.buffers
        self._load(w, batch)
        loss = self._mean(self._forward(batch.x[0]), batch.y[0], batch)
        self._model.load(w[0], kept)
        return loss.expand(1, 1)

    def features(self, w: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        kept = self._model.buffers
        self._model.load(w[0], buffers[0])
        self._model.module.eval()
        with torch.no_grad():
            _, z = with_features(self._model.module, lambda: self._model.forward(x[0]))
        self._model.module.train()
        self._model.load(w[0], kept)
        return z.unsqueeze(0)
