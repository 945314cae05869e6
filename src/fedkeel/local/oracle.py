"""Gradients of one client's mini-batches by PyTorch's autograd, one client at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkeel import streams
from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError
from fedkeel.experiment import LocalSettings
from fedkeel.params import FlatModel


class ClientOracle:
    """One client's data and one flat model; every draw comes from streams named by (seed, round, client, epoch).

    `steps` counts the mini-batches seen in training.
    """

    def __init__(
        self, model: FlatModel, data: FederatedData, local: LocalSettings, seed: int, round: int, client: int
    ) -> None:
        self._model = model
        self._data = data
        self._local = local
        self._where = (seed, round, client)
        self._indices = data.client(client)
        self._batch: tuple[Tensor, Tensor] | None = None
        self._losses: list[Tensor] = []
        self._sizes: list[int] = []
        self._fresh = False
        self._dropout = 0
        self.steps = 0

    def batches(self, epoch: int) -> Iterator[None]:
        """Shuffle the client's samples and make one mini-batch after the other current; the last may be smaller."""
        seed, round_, client = self._where
        order = streams.permutation(streams.key(seed, "batches", round_, client, epoch), len(self._indices))
        dropout = streams.key(seed, "dropout", round_, client, epoch) >> 1
        augment = None
        if self._data.augment:
            augment = torch.Generator().manual_seed(streams.key(seed, "augment", round_, client, epoch) >> 1)
        size = len(order) if self._local.batch_size == "full" else self._local.batch_size
        for step, chosen in enumerate(torch.split(self._indices[torch.from_numpy(order)], size)):
            self._batch = self._data.train_batch(chosen, augment)
            self._dropout = dropout ^ step
            self._fresh = True
            self.steps += 1
            yield
        self._batch = None

    def grad(self, w: Tensor) -> Tensor:
        """Gradient [D] of the current mini-batch's mean loss at `w`, clipped, plus weight decay.

        Several gradients in one step see the same dropout masks; the first is the step's loss, and it alone moves
        batch-norm statistics.
        """
        if self._batch is None:
            raise FedkeelError("oracle.grad was asked for outside of a step, where no mini-batch is current")
        kept = None if self._fresh else self._model.buffers
        # Dropout inside a module can only draw from torch's global generator, which the executor restores.
        torch.default_generator.manual_seed(self._dropout)
        self._model.load(w)
        x, y = self._batch
        with torch.enable_grad():
            loss = cross_entropy(self._model.module(x), y)
            parts = torch.autograd.grad(loss, self._model.parameters, materialize_grads=True)
        if kept is None:
            self._fresh = False
            self._losses.append(loss.detach())
            self._sizes.append(len(y))
        else:
            self._model.load(w, kept)
        g = torch.cat([p.reshape(-1) for p in parts])
        if self._local.clip_norm is not None:
            g = g * (self._local.clip_norm / (g.norm() + 1e-6)).clamp(max=1.0)
        if self._local.weight_decay:
            g = g.add_(w, alpha=self._local.weight_decay)
        return g

    @property
    def loss(self) -> float:
        """Mean loss over the samples seen in training, each at the time it was seen."""
        if not self._losses:
            raise FedkeelError("the client rule asked for no gradient in a whole job, so there is no training loss")
        sizes = torch.tensor(self._sizes, dtype=torch.float64)
        return float(torch.stack(self._losses).double() @ sizes / sizes.sum())
