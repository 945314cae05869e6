"""Many orders at once, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.methods.job import Fresh
from fedkeel.methods.types import Message
from fedkeel.wire.orders import Order, Same

T = TypeVar("T")
Numbers = NDArray[np.int64]
Column = Same[T] | list[T]

Shares = NDArray[np.float64]

_NUMBERS = frozenset({"job", "client", "round", "epochs", "wave", "version", "slot"})
_FIELDS = tuple(each.name for each in fields(Order))
COLUMNS = (*_FIELDS, "share")


class Orders(Sequence[Order]):
    """Jobs in columns, one row per job: every field of `Order` is a column here, under the same name.

    Numbers (`job`, `client`, `round`, `epochs`, `wave`, `version`, `slot`, and `drawn`) are arrays [m] of int64. Every
    other column (`start`, `buffers`, `lr`, `received`, `kept`, `survey`, `fresh`) is a list, or a `Same` where all rows
    have the very same object: if `orders.start` is a `Same`, `orders.start.value` is the start of all. Columns are not
    changed in place; `but` makes other orders.

    As a sequence it has an `Order` for every row, which is made on first use. `Orders.of` takes any sequence of orders,
    and makes a column on its first use.
    """

    job: Numbers
    client: Numbers
    round: Numbers
    epochs: Numbers
    wave: Numbers
    version: Numbers
    slot: Numbers
    start: Column[Tensor]
    buffers: Column[Tensor]
    lr: Column[Tensor]
    received: Column[Message]
    kept: Column[Message]
    survey: Column[bool]
    fresh: Column[Fresh[int] | None]
    share: Shares | None = None
    """[m], each client's share in the mean of their weights, where only that mean is wanted. No order has this."""

    def __init__(self, **columns: Any) -> None:
        """All columns; `share` may be missing."""
        vars(self).update(columns)

    @classmethod
    def of(cls, orders: Sequence[Order]) -> Orders:
        """The same orders."""
        return orders if isinstance(orders, Orders) else cls(rows=[*orders])

    @cached_property
    def rows(self) -> list[Order]:
        """One by one."""
        columns = vars(self)
        return [*map(Order, *(columns[n].tolist() if n in _NUMBERS else columns[n] for n in _FIELDS))]

    def __getattr__(self, name: str) -> Any:
        rows = vars(self).get("rows")
        if name not in _FIELDS or rows is None:
            raise AttributeError(name)
        column: Any = [getattr(order, name) for order in rows]
        if name in _NUMBERS:
            column = np.array(column, dtype=np.int64)
        elif all(value is column[0] for value in column):
            column = Same(column[0], len(column)) if column else column
        vars(self)[name] = column
        return column

    def numbers(self, name: str) -> list[int]:
        """A column of numbers as a list of its own."""
        column = vars(self).get(name)
        return [getattr(order, name) for order in self.rows] if column is None else column.tolist()

    def all_have(self, name: str, value: object) -> bool:
        """Whether all rows have this very object."""
        column = vars(self).get(name)
        if isinstance(column, Same):
            return column.value is value
        return all(each is value for each in column or (getattr(order, name) for order in self.rows))

    @property
    def drawn(self) -> Numbers:
        """`Order.drawn`"""
        return np.where(self.wave, self.wave, self.round)

    @property
    def stay(self) -> bool:
        """Whether trained weights stay where they are: only what clients answer is wanted, or their mean."""
        return self.share is not None or self.survey[0]

    def but(self, **columns: Any) -> Orders:
        """The same orders with some columns replaced."""
        return Orders(**{name: columns[name] if name in columns else getattr(self, name) for name in COLUMNS})

    def pick(self, rows: NDArray[np.int64]) -> Orders:
        """Some of them, in this order."""
        return Orders(**{name: picked(getattr(self, name), rows) for name in COLUMNS})

    @classmethod
    def joined(cls, parts: Sequence[Orders]) -> Orders:
        """All rows of these, one part after the other."""
        return parts[0] if len(parts) == 1 else cls(**{name: _joined(name, parts) for name in COLUMNS})

    def __len__(self) -> int:
        return len(vars(self).get("rows") or self.job)

    def __iter__(self) -> Iterator[Order]:
        return iter(self.rows)

    @overload
    def __getitem__(self, place: int) -> Order: ...
    @overload
    def __getitem__(self, place: slice) -> list[Order]: ...
    def __getitem__(self, place: int | slice) -> Order | list[Order]:
        if "rows" in vars(self) or isinstance(place, slice):
            return self.rows[place]
        return Order(
            self.job.item(place),
            self.client.item(place),
            self.round.item(place),
            self.epochs.item(place),
            self.start[place],
            self.buffers[place],
            self.lr[place],
            self.received[place],
            self.kept[place],
            self.survey[place],
            self.wave.item(place),
            self.version.item(place),
            self.slot.item(place),
            self.fresh[place],
        )


def picked(column: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of a column of any kind, in this order."""
    if column is None:
        return None
    if isinstance(column, Same):
        return Same(column.value, len(rows))
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows.tolist()]


def _joined(name: str, parts: Sequence[Orders]) -> Any:
    columns = [getattr(part, name) for part in parts]
    if any(column is None for column in columns):
        return None
    if name in _NUMBERS or name == "share":
        return np.concatenate(columns)
    first = columns[0]
    if all(isinstance(column, Same) and column.value is first.value for column in columns):
        return Same(first.value, sum(map(len, columns)))
    return [value for column in columns for value in column]
