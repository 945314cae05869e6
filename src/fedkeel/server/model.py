"""The global model: its versions, the two rules, and how updates change it."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import FormedMean, Updates, Withheld
from fedkeel.methods.path import Curve
from fedkeel.methods.returned import check_aggregate, check_message, check_receive, check_state, left_alone
from fedkeel.methods.server import Inheriting, Receipt, ServerRule, View, only_mean
from fedkeel.methods.types import Message
from fedkeel.params import FlatModel
from fedkeel.server.clients import Landed
from fedkeel.server.stateful import Stateful
from fedkeel.wire.orders import MEAN, Trained, stacked, stacked_fresh
from fedkeel.wire.sizes import WITH_BUFFERS


class GlobalModel(Stateful):
    """Its state consists of plain tensors and numbers."""

    saved = ("state", "buffers", "version", "_waiting", "_weight")

    def __init__(
        self,
        rules: tuple[ClientRule, ServerRule],
        model: FlatModel,
        samples: NDArray[np.int64],
        epochs: int,
        momentum: float,
        nesterov: bool = False,
        curve: Curve | None = None,
    ) -> None:
        """`samples` [N] are all clients'; `epochs`, `momentum` and the curve of rates are those of a full job."""
        self.client_rule, self.rule = rules
        self.layout = model.layout
        self.buffers = model.buffers
        self.state = self.rule.init(model.w.clone(), model.layout, torch.from_numpy(samples).to(model.w.device))
        check_state(self.rule, "init", self.state, model.w)
        self.version = 0
        """How often the global model has been replaced."""
        self._samples, self._epochs = samples, epochs
        self._momentum, self._nesterov, self._curve = momentum, nesterov, curve
        self._mean = only_mean(self.rule)
        moving = model.layout.mask(self.client_rule.trains).to(model.w.device)
        self._frozen = None if moving.all() else ~moving
        sent = model.layout.mask(self.client_rule.uploads).to(model.w.device)
        self._sent = sent if sent.any() and not sent.all() else None
        """[D], the weights that come back, where some do not."""
        self._waiting: list[Tensor] = []
        """Batch-norm statistics of updates that are not in the model yet."""
        self._weight = 0.0
        """The total weight of these updates."""
        self._gets_buffers = bool(self.layout.buffers) and self.client_rule.uploads in WITH_BUFFERS

    def inherit(self, earlier: Message) -> None:
        """Begin with what the server of an earlier run remembered."""
        assert isinstance(self.rule, Inheriting)
        before = self.state
        self.state = self.rule.inherit(before, earlier, self._epochs)
        check_state(self.rule, "inherit", self.state, before.w)

    @property
    def evaluated(self) -> Tensor:
        """The weights that are tested and handed to the user."""
        return self.rule.evaluated(self.state)

    @property
    def finite(self) -> bool:
        """Whether all weights are finite."""
        w = self.state.w
        return isfinite(w.sum()) or bool(w.isfinite().all())

    def aggregate(self, landed: Landed, trained: Trained) -> list[float]:
        """The next version from the updates of a round with a barrier; returns each update's weight."""
        updates = self._updates(landed, trained)
        before = self.state.w
        with left_alone(self.rule, "aggregate", self._given(updates)):
            made = self.rule.aggregate(self.state, updates)
        check_aggregate(self.rule, made, before, len(landed))
        self.state, weights = made
        self._hold_still(before)
        # Batch-norm statistics are averaged plainly, whatever the rule does with the weights.
        if self._gets_buffers:
            counts = updates.samples[:, 0] if updates.draws is None else updates.draws
            self.buffers = counts.double() / counts.sum() @ trained.buffers
        self.version += 1
        return list(weights.tolist())

    def receive(self, landed: Landed, trained: Trained, view: View) -> Receipt:
        """Take in one update."""
        before = self.state.w
        updates = self._updates(landed, trained)
        with left_alone(self.rule, "receive", self._given(updates)):
            made = self.rule.receive(self.state, updates, view)
        check_receive(self.rule, made, before)
        self.state, receipt = made
        self._hold_still(before)
        if self._gets_buffers and receipt.accepted:
            self._mix_buffers(trained.buffers[0], receipt)
        self.version += receipt.published
        return receipt

    def _given(self, updates: Updates) -> list[Tensor]:
        """What a rule must not change in place."""
        weights = updates.w if updates.formed is None else updates.formed.w
        return [self.state.w, *self.state.memory.values(), weights, updates.start, *updates.messages.values()]

    def _mix_buffers(self, arrived: Tensor, receipt: Receipt) -> None:
        """A new version mixes in the plain mean of all statistics since the last one, with their updates' weight."""
        self._waiting.append(arrived)
        self._weight += sum(receipt.earlier, receipt.weight or 0.0)
        if receipt.published:
            mean = torch.stack(self._waiting).mean(0)
            self.buffers = torch.lerp(self.buffers, mean, min(1.0, max(0.0, self._weight)))
            self._waiting, self._weight = [], 0.0

    def report(self) -> dict[str, Any]:
        """What the server rule reports about the round."""
        told = self.rule.report(self.state)
        check_message(self.rule, "report", told)
        return {name: tensor.tolist() for name, tensor in told.items()}

    def close(self) -> bool:
        """End the run; returns whether that changes the model."""
        before = self.state
        self.state = self.rule.close(before)
        check_state(self.rule, "close", self.state, before.w)
        if self.state is before:
            return False
        if self._waiting:
            self.buffers, self._waiting = torch.stack(self._waiting).mean(0), []
        self.version += 1
        return True

    def _hold_still(self, before: Tensor) -> None:
        """Keep frozen weights exactly as they are; a mean of equal numbers may round."""
        if self._frozen is not None:
            self.state = replace(self.state, w=torch.where(self._frozen, before, self.state.w))

    def _updates(self, landed: Landed, trained: Trained) -> Updates:
        orders, device, sums = landed.orders, trained.w.device, dict(trained.sums)
        formed, withheld = None, cast(Any, Withheld())
        if orders.share is not None:
            assert self._mean is not None
            formed = FormedMean(self._travelled(sums.pop(MEAN).sum(0), orders.start[0]), self._mean)
        fresh = None if orders.all_have("fresh", None) else stacked_fresh(orders, device)
        start = stacked(orders.start, device)
        completed = trained.completed
        return Updates(
            w=self._travelled(trained.w, start) if formed is None else withheld,
            start=start,
            samples=torch.from_numpy(self._samples[orders.client][:, None]).to(device),
            epochs=torch.from_numpy(orders.epochs[:, None].copy()),
            steps=trained.steps[:, None].to(device),
            lr=trained.lr,
            messages=trained.messages,
            layout=self.layout,
            sums=sums,
            asked=self._epochs,
            draws=None if landed.draws is None else torch.tensor(landed.draws, device=device),
            momentum=self._momentum,
            pull=self.client_rule.pull,
            slot=torch.from_numpy(orders.slot[:, None].copy()) if fresh is not None else None,
            fresh=fresh,
            loss=trained.loss[:, None].to(device),
            completed=None if completed is None else self._travelled(completed, start),
            nesterov=self._nesterov,
            curve=self._curve,
            formed=formed,
        )

    def _travelled(self, w: Tensor, start: Tensor) -> Tensor:
        """[..., D], weights as they come back; those that do not travel keep the values that were sent."""
        return w if self._sent is None else torch.where(self._sent, w, start)
