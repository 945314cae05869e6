"""Orders on their way to a worker: bytes that name tensors, and each tensor once."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedkeel.wire.many import COLUMNS, Orders
from fedkeel.wire.orders import Order


def pack(orders: Sequence[Order]) -> tuple[bytes, list[Tensor]]:
    """The orders column by column, and the tensors that they hold."""
    file, made = io.BytesIO(), Orders.of(orders)
    packer = _Packer(file, pickle.HIGHEST_PROTOCOL)
    packer.dump([getattr(made, name) for name in COLUMNS])
    return file.getvalue(), packer.tensors


def unpack(packed: bytes, tensors: Sequence[Tensor]) -> Orders:
    """The orders; `tensors` are those that were packed, or copies of them."""
    return Orders(**dict(zip(COLUMNS, _Unpacker(io.BytesIO(packed), tensors).load(), strict=True)))


def _tensor(number: int) -> Tensor:
    """Stands for a tensor, by its number."""
    raise NotImplementedError


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.tensors: list[Tensor] = []

    def reducer_override(self, value: Any) -> Any:
        """Called once for each tensor: the pickler remembers what it has seen."""
        if not isinstance(value, Tensor):
            return NotImplemented
        self.tensors.append(value)
        return _tensor, (len(self.tensors) - 1,)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def find_class(self, module: str, name: str) -> Any:
        return (
            self._tensors.__getitem__ if (module, name) == (__name__, "_tensor") else super().find_class(module, name)
        )
