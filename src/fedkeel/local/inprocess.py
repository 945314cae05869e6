"""The executor that trains in this process: one by one or in stacks, as its trainer does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError
from fedkeel.experiment import LocalSettings
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.orders import Columns, Order, Score, Trained
from fedkeel.local.trainers import Trainer, plan


class InProcess:
    """Trains stack after stack."""

    def __init__(
        self, trainer: Trainer, evaluator: Evaluator, data: FederatedData, local: LocalSettings, stack: int | None
    ) -> None:
        self._trainer = trainer
        self._evaluator = evaluator
        self._data = data
        self._local = local
        self._stack = stack

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        """What became of these orders, in their order; with `limit`, after so many steps."""
        columns: Columns = {}
        for rows in plan(orders, self._data, self._local, self._stack):
            part = self._trainer([orders[row] for row in rows], limit)
            if not columns:
                columns = allocate(part, orders)
            put(part, rows, columns)
        return Trained(columns)

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None) -> Score:
        """Test `w` on the test set, or on those samples of it."""
        return self._evaluator.score(w, buffers, samples)

    def close(self) -> None:
        """Nothing outlives a call."""


def allocate(part: Columns, orders: Sequence[Order], empty: Callable[..., Tensor] = torch.empty) -> Columns:
    """Columns for all orders, of the kind that one part of them has."""
    columns = {
        name: empty((len(orders), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
        for name, tensor in part.items()
    }
    longest = max(order.epochs for order in orders)
    columns["lr"] = part["lr"].new_zeros(len(orders), longest)
    return columns


def put(part: Columns, rows: Sequence[int], columns: Columns) -> None:
    """Write the rows of a part where they belong."""
    if part.keys() != columns.keys():
        raise FedkeelError(
            f"the client rule sends or keeps {sorted(part)} for some clients and {sorted(columns)} for others; "
            "accepted: the same names for all"
        )
    first, last = rows[0], rows[-1] + 1
    where: slice | list[int] = slice(first, last) if list(rows) == [*range(first, last)] else list(rows)
    for name, tensor in part.items():
        target = columns[name] if name != "lr" else columns[name][:, : tensor.shape[1]]
        try:
            target[where] = tensor
        except RuntimeError:
            raise FedkeelError(
                f"the client rule's {name} has shape {list(tensor.shape[1:])} for some clients and "
                f"{list(target.shape[1:])} for others; accepted: one shape"
            ) from None
