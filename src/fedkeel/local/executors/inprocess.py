"""The executor that trains in this process: one by one or in stacks, as its trainer does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.federated import Held
from fedkeel.errors import FedkeelError
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.executor import Score
from fedkeel.local.executors.memory import Lender
from fedkeel.local.trainer import Trainer, plan
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Columns, Order, Trained, add, divided


@dataclass(frozen=True, eq=False)
class InProcess:
    """Trains stack after stack."""

    trainer: Trainer
    evaluator: Evaluator
    stack: int | None
    # Large results lie in memory that is used again: the system takes its time to hand out fresh pages.
    lender: Lender = field(default_factory=lambda: Lender(shared=False))

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        orders, columns = Orders.of(orders), Columns()
        w = self._lent({"w": orders.start[0][: 0 if orders.stay else None]}, len(orders))["w"]
        stacks = plan(orders, self.trainer.data, self.trainer.local, self.stack)
        if len(stacks) == 1 and consecutive(stacks[0]):
            return Trained(self.trainer(orders, limit, w))
        sums: Columns | None = None
        for rows in stacks:
            span = consecutive(rows)
            part, more = divided(self.trainer(orders.pick(np.array(rows)), limit, w[span] if span else None))
            sums = add(sums, more)
            if not columns:
                rest = {name: tensor[0] for name, tensor in part.items() if name != "w"}
                rest["lr"] = part["lr"].new_empty(int(orders.epochs.max()))
                columns = {"w": w, **self._lent(rest, len(orders))}
            put(part, rows, columns)
        return Trained(columns | (sums or {}))

    def _lent(self, like: Columns, rows: int) -> Columns:
        """Columns with so many rows, each like the tensor of its name."""
        if any(tensor.is_cuda for tensor in like.values()):
            return {name: tensor.new_empty(rows, *tensor.shape) for name, tensor in like.items()}
        return self.lender.lend({name: ((rows, *tensor.shape), tensor.dtype) for name, tensor in like.items()})[1]

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None, on: Held = "test") -> Score:
        return self.evaluator.score(w, buffers, samples, on)

    def predict(self, w: Tensor, buffers: Tensor, on: Held = "test") -> Tensor:
        return self.evaluator.predict(w, buffers, on)

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.lender.close()


def consecutive(rows: Sequence[int]) -> slice | None:
    """The rows as a slice, if they are one."""
    span = range(rows[0], rows[-1] + 1)
    return slice(span.start, span.stop) if len(span) == len(rows) and [*rows] == [*span] else None


def put(part: Columns, rows: Sequence[int], columns: Columns) -> None:
    """Write the rows of a part where they belong."""
    if part.keys() != columns.keys():
        raise FedkeelError(
            f"the client rule sends or keeps {sorted(part)} for some clients and {sorted(columns)} for others; "
            "make the names the same for all clients"
        )
    span = consecutive(rows)
    for name, tensor in part.items():
        target = columns[name] if name != "lr" else columns[name][:, : tensor.shape[1]]
        if tensor.shape[1:] != target.shape[1:] or tensor.dtype != target.dtype:
            raise FedkeelError(
                f"the client rule's {name} is {list(tensor.shape[1:])} of {tensor.dtype} for some clients and "
                f"{list(target.shape[1:])} of {target.dtype} for others; make them the same"
            )
        if not tensor.numel() or tensor.data_ptr() != target[rows[0]].data_ptr():  # else it was made there
            if span:
                target[span] = tensor
            else:  # assignment would take many times as long
                target.index_copy_(0, torch.tensor(rows, device=target.device), tensor)
