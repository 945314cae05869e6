"""The serial executor: one client after the other on one model."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel.algorithms.rules import ClientRule, Job
from fedkeel.data.federated import FederatedData
from fedkeel.experiment import LocalSettings
from fedkeel.local.loop import train
from fedkeel.local.oracle import ClientOracle
from fedkeel.local.orders import Order, Score, Update
from fedkeel.params import FlatModel

EVALUATION_BATCH = 250  # larger batches of convolutions fall out of the cache


class SerialExecutor:
    """Trains on its own copy of the model; leaves torch's global generator as it found it."""

    def __init__(
        self, module: nn.Module, data: FederatedData, rule: ClientRule, local: LocalSettings, seed: int
    ) -> None:
        self._model = FlatModel(copy.deepcopy(module))
        self._data = data
        self._rule = rule
        self._local = local
        self._seed = seed

    def train(self, orders: Sequence[Order]) -> list[Update]:
        """The updates of these orders, in their order."""
        self._model.module.train()
        with torch.random.fork_rng(devices=[]):
            return [self._train(order) for order in orders]

    def _train(self, order: Order) -> Update:
        self._model.load(order.start, order.buffers)
        oracle = ClientOracle(self._model, self._data, self._local, self._seed, order.round, order.client)
        samples = int(self._data.sizes[order.client])
        job = Job(
            round=order.round,
            start=order.start,
            lr=order.lr,
            samples=torch.tensor([samples]),
            received=order.received,
            kept=order.kept,
        )
        job, w, message, kept = train(job, self._rule, oracle, self._local.momentum)
        return Update(
            order=order,
            w=w,
            buffers=self._model.buffers,
            message=message,
            kept=kept,
            lr=[float(str(rate)) for rate in job.lr.numpy()],  # 0.05, not 0.05000000074505806
            samples=samples,
            steps=oracle.steps,
            loss=oracle.loss,
        )

    @torch.no_grad()  # not inference_mode: a module may keep a tensor made here for training
    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None) -> Score:
        """Test `w` on the test set, or on those samples of it."""
        self._model.load(w, buffers)
        self._model.module.eval()
        total = len(self._data.test.y) if samples is None else len(samples)
        hits, loss = 0, 0.0
        for start in range(0, total, EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            x, y = self._data.test_batch(part if samples is None else samples[part])
            logits = self._model.module(x)
            hits += int((logits.argmax(dim=1) == y).sum())
            loss += float(cross_entropy(logits, y, reduction="sum"))
        return Score(hits / total, loss / total)
