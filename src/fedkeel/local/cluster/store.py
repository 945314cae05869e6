"""What workers need to have: it goes to each machine once, and to each worker once as long as that uses it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor

from fedkeel.local.cluster.freeze import Frozen, freeze

Reference = Any
"""Of something in Ray's store."""
_SMALL = 100_000
"""Bytes up to which something goes with the call: so does Ray, too."""


@dataclass(frozen=True)
class Parcel:
    """Tensors for a worker, by number."""

    here: tuple[int, ...]
    """Those that it has already."""
    fresh: Frozen
    """Small ones, and those that nobody else needs."""
    stored: Mapping[int, Reference]


@dataclass(frozen=True)
class _Known:
    value: weakref.ref[Any]
    version: int
    number: int
    reference: Reference | None


class Store:
    """Remembers what it has seen for as long as somebody else has it."""

    def __init__(self, put: Callable[[object], Reference]) -> None:
        self._put = put
        self._known: dict[int, _Known] = {}
        self._numbers = count()

    def put(self, value: Any) -> Reference:
        """A reference to something that holds tensors."""
        return self._find(value, large=True).reference

    def parcel(
        self, tensors: Sequence[Tensor], shared: Callable[[Tensor], bool], held: set[int]
    ) -> tuple[list[int], Parcel]:
        """(The numbers of these tensors, what a worker needs that holds those); it holds the shared ones then."""
        numbers, fresh, stored = list[int](), dict[int, Tensor](), dict[int, Reference]()
        for tensor in tensors:
            if not shared(tensor):
                numbers.append(-1 - len(fresh))
                fresh[numbers[-1]] = tensor
                continue
            large = tensor.numel() * tensor.element_size() > _SMALL
            known = self._find(tensor, large)
            numbers.append(known.number)
            if known.number in held:
                continue
            if large:
                stored[known.number] = known.reference
            else:
                fresh[known.number] = tensor
        used = {number for number in numbers if number >= 0}
        here = tuple(used & held)
        held.clear()
        held |= used
        return numbers, Parcel(here, freeze(fresh), stored)

    def _find(self, value: Any, large: bool) -> _Known:
        version = value._version if isinstance(value, Tensor) and not value.is_inference() else 0
        known = self._known.get(id(value))
        if known is not None and known.value() is value and known.version == version:
            return known
        number, forget = id(value), self._known.pop
        reference = self._put(freeze(value)) if large else None
        known = _Known(weakref.ref(value, lambda _: forget(number, None)), version, next(self._numbers), reference)
        self._known[number] = known
        return known

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
