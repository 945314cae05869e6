"""What goes down to a client, and what comes up from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from itertools import repeat
from typing import Any, Generic, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedkeel.errors import DivergenceError, FedkeelError
from fedkeel.methods.job import Fresh
from fedkeel.methods.types import Message

T = TypeVar("T")


@dataclass(slots=True)
class Order:
    """A job as the server dispatches it to one client: everything that training needs, nothing of the clock."""

    job: int
    """Its number in the run, from 1."""
    client: int
    round: int
    epochs: int
    """The epochs of the job. With `local.steps`, these are mini-batches, as is everything called an order's epochs."""
    start: Tensor
    buffers: Tensor
    lr: Tensor
    """[epochs]"""
    received: Message
    kept: Message
    survey: bool = False
    """Whether it is the answer to a survey, not training."""
    wave: int = 0
    """The dispatch that it belongs to, from 1, which decides its mini-batches; 0: the same as the round."""
    version: int = 0
    """The version of the model that it starts from."""
    slot: int = 0
    """After how many epochs it gets a fresh model; 0: it gets none."""
    fresh: Fresh[int] | None = None

    @property
    def drawn(self) -> int:
        """The number that names its random streams."""
        return self.wave or self.round


class Same(Sequence[T], Generic[T]):
    """One value that all rows share."""

    __slots__ = ("_rows", "value")

    def __init__(self, value: T, rows: int) -> None:
        self.value, self._rows = value, rows

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[T]:
        return repeat(self.value, self._rows)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Same[T]: ...
    def __getitem__(self, place: int | slice) -> T | Same[T]:
        if isinstance(place, slice):
            return Same(self.value, len(range(self._rows)[place]))
        if not -self._rows <= place < self._rows:
            raise IndexError(place)
        return self.value


def stacked(values: Sequence[Any] | NDArray[np.int64], device: torch.device) -> Any:
    """The values of one field of C orders, as a rule sees them: numbers [C, 1], tensors [C, ...], mappings alike.

    There is no copy where all have the same tensor.
    """
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values).to(device)[:, None]
    first, same = values[0], isinstance(values, Same)
    if isinstance(first, Tensor):
        same = same or all(value is first for value in values)
        return first.expand(len(values), *first.shape) if same else torch.stack([*values])
    if isinstance(first, Mapping):
        rows = len(values)
        return {
            name: stacked(Same(first[name], rows) if same else [value[name] for value in values], device)
            for name in first
        }
    if isinstance(first, Fresh):
        return Fresh(*(stacked([getattr(value, each.name) for value in values], device) for each in fields(Fresh)))
    return torch.tensor([*values], device=device)[:, None]


def stacked_fresh(orders: Sequence[Order], device: torch.device) -> Fresh[Tensor] | None:
    """The fresh models of those that got one; the others have the model that they started from in its place."""
    if all(order.fresh is None for order in orders):
        return None
    models = [order.fresh or Fresh(order.start, order.buffers, order.version) for order in orders]
    fresh: Fresh[Tensor] = stacked(models, device)
    return fresh


Columns = dict[str, Tensor]
"""Named tensors with one row per order: see `Trained`; messages are called `message/...`, kept state `kept/...`.

Tensors called `sum/...` have no rows: they belong to all orders together.
"""
SUM = "sum/"
MEAN = "mean of the weights"
"""The name of the sum that stands for the weights, where these stay where they were trained (`Orders.share`)."""


@dataclass(frozen=True)
class Trained:
    """The results of m orders: every tensor has a leading axis m."""

    columns: Columns

    @property
    def w(self) -> Tensor:
        """[m, D], the trained weights."""
        return self.columns["w"]

    @property
    def buffers(self) -> Tensor:
        """[m, B]"""
        return self.columns["buffers"]

    @property
    def lr(self) -> Tensor:
        """[m, E], the learning rates really used; those after a client's last epoch mean nothing."""
        return self.columns["lr"]

    @property
    def steps(self) -> Tensor:
        """[m], mini-batches seen."""
        return self.columns["steps"]

    @property
    def loss(self) -> Tensor:
        """[m], float64: mean loss of the mini-batches, weighted by their sizes, while training."""
        return self.columns["loss"]

    @property
    def completed(self) -> Tensor | None:
        """[m, D], `Updates.completed`, where that was asked for."""
        return self.columns.get("completed")

    @property
    def finite(self) -> Tensor:
        """[m], whether weights and loss are finite."""
        return self.columns["finite"]

    @property
    def intact(self) -> Tensor | None:
        """[m], whether weights are finite after the wire's transforms; None unless there are some, and weights stay."""
        return self.columns.get("intact")

    def sound(self, max_loss: float) -> list[bool]:
        """For each order, whether training succeeded: everything is finite, and the loss is not above a bound."""
        pairs = zip(self.finite.tolist(), self.loss.tolist(), strict=True)
        return [finite and loss <= max_loss for finite, loss in pairs]

    def pick(self, rows: Sequence[int] | slice) -> Trained:
        """Some of them, without the sums over all of them."""
        return Trained({name: tensor[rows] for name, tensor in self.columns.items() if not name.startswith(SUM)})

    @cached_property
    def messages(self) -> Message:
        """What goes up beside the weights."""
        return _below("message/", self.columns)

    @cached_property
    def kept(self) -> Message:
        """What the clients keep."""
        return _below("kept/", self.columns)

    @cached_property
    def sums(self) -> Message:
        """`Job.sums`, added up over all orders."""
        return _below(SUM, self.columns)


def _below(prefix: str, columns: Columns) -> Message:
    return {name.removeprefix(prefix): tensor for name, tensor in columns.items() if name.startswith(prefix)}


def gather(parts: Sequence[tuple[Trained, int]]) -> Trained:
    """Single rows of several results as one result; no copy where they are one whole result already."""
    whole = parts[0][0]
    if len(parts) == len(whole.w) and all(part is whole and row == i for i, (part, row) in enumerate(parts)):
        return whole
    if whole.sums:
        raise FedkeelError(
            "the client rule sends sums over all clients, which cannot be split by client; use a server rule with the "
            "pace barrier, or send messages in place of sums"
        )
    return Trained({name: torch.stack([part.columns[name][row] for part, row in parts]) for name in whole.columns})


def assembled(uploads: Sequence[Trained]) -> Trained:
    """Uploads of single clients as one result; their sums are added up."""
    rows, sums = zip(*(divided(upload.columns) for upload in uploads), strict=True)
    longest = max(part["lr"].shape[1] for part in rows)
    rates = {"lr": torch.cat([pad(part["lr"], (0, longest - part["lr"].shape[1])) for part in rows])}
    together = {name: torch.cat([part[name] for part in rows]) for name in rows[0] if name != "lr"}
    return Trained(together | rates | reduce(add, sums))


def divergence(order: Order, trained: Trained, row: int) -> DivergenceError:
    """The error for a client whose training diverged."""
    return DivergenceError(
        f"training diverged in round {order.round} on client {order.client}: its loss is {float(trained.loss[row])} at "
        f"learning rate {float(trained.lr[row, 0]):g}; try a smaller local.lr, or local.clip_norm"
    )


def divided(part: Columns) -> tuple[Columns, Columns]:
    """(The tensors with one row per order, the sums over all of them)."""
    sums = {name: tensor for name, tensor in part.items() if name.startswith(SUM)}
    return {name: tensor for name, tensor in part.items() if name not in sums}, sums


def add(sums: Columns | None, more: Columns) -> Columns:
    """Both together; the first is None where nothing has been trained yet."""
    if sums is None:
        return more
    if sums.keys() != more.keys() or any(tensor.shape != more[name].shape for name, tensor in sums.items()):
        raise FedkeelError(
            f"the client rule sends sums {sorted(sums)} for some clients and {sorted(more)} for others, or in other "
            "shapes; send the same sums for all clients"
        )
    return {name: tensor + more[name] for name, tensor in sums.items()}
