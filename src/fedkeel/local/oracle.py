"""Gradients of one client's mini-batches by PyTorch's autograd, one client at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkeel import streams
from fedkeel.data.federated import FederatedData
from fedkeel.experiment import LocalSettings
from fedkeel.params import FlatModel


class ClientOracle:
    """One client's data and one flat model; draws everything from streams named by (seed, round, client, epoch)."""

    def __init__(
        self, model: FlatModel, data: FederatedData, local: LocalSettings, seed: int, round: int, client: int
    ) -> None:
        self._model = model
        self._data = data
        self._local = local
        self._where = (seed, round, client)
        self._indices = data.client(client)
        self._batch = (data.train.x[:0], data.train.y[:0])
        self._losses: list[Tensor] = []
        self._sizes: list[int] = []
        self._counted = False

    def bind(self, w: Tensor) -> Tensor:
        """The model's own flat vector, so that steps in place need no copy back."""
        self._model.load(w)
        return self._model.w

    def batches(self, epoch: int) -> Iterator[None]:
        """Shuffle the client's samples and make one mini-batch after the other current; the last may be smaller."""
        seed, round_, client = self._where
        order = streams.permutations(streams.keys(seed, "batches", round_, client, epoch), len(self._indices))[0]
        # Dropout inside a user's module can only draw from torch's global generator: it is seeded by name here,
        # and restored by the executor.
        torch.manual_seed(streams.key(seed, "dropout", round_, client, epoch) >> 1)
        augment = torch.Generator().manual_seed(streams.key(seed, "augment", round_, client, epoch) >> 1)
        size = len(order) if self._local.batch_size == "full" else self._local.batch_size
        for chosen in torch.split(self._indices[torch.from_numpy(order)], size):
            self._batch = self._data.train_batch(chosen, augment)
            self._counted = False
            yield

    def grad(self, w: Tensor) -> Tensor:
        """Gradient [D] of the current mini-batch's mean loss at `w`, clipped, plus weight decay."""
        self._model.load(w)
        x, y = self._batch
        with torch.enable_grad():
            loss = cross_entropy(self._model.module(x), y)
            parts = torch.autograd.grad(loss, self._model.parameters, materialize_grads=True)
        if not self._counted:  # a rule may ask for several gradients in a step: the first is the step's loss
            self._losses.append(loss.detach())
            self._sizes.append(len(y))
            self._counted = True
        g = torch.cat([p.reshape(-1) for p in parts])
        if self._local.clip_norm is not None:
            g = g * (self._local.clip_norm / (g.norm() + 1e-6)).clamp(max=1.0)
        if self._local.weight_decay:
            g = g.add_(w, alpha=self._local.weight_decay)
        return g

    @property
    def steps(self) -> int:
        """Mini-batches seen in training."""
        return len(self._sizes)

    @property
    def loss(self) -> float:
        """Mean loss over the samples seen in training, each at the time it was seen."""
        sizes = torch.tensor(self._sizes, dtype=torch.float64)
        return float(torch.stack(self._losses).double() @ sizes / sizes.sum())
