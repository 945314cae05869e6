"""A worker on a cluster: trains and tests what it is sent; data and model come to its machine once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedkeel.data.federated import FederatedData, Held
from fedkeel.local.cluster.connection import package
from fedkeel.local.cluster.freeze import Frozen, freeze, thaw
from fedkeel.local.evaluation import Evaluator, Part
from fedkeel.local.executors.memory import keep_freed
from fedkeel.local.executors.packing import unpack
from fedkeel.local.executors.worker import Failed
from fedkeel.local.settings import ExecutorSettings
from fedkeel.local.trainer import Trainer
from fedkeel.wire.orders import Columns, add, divided


class Shop(Protocol):
    """A workshop: everything that training needs beside the orders."""

    def moved(self, data: FederatedData, device: str) -> Shop:
        """The same with this data, on this device."""
        ...

    def parts(self, settings: ExecutorSettings) -> tuple[Trainer, Evaluator]:
        """What trains and what tests."""
        ...


@dataclass(frozen=True)
class Shipped:
    """A workshop on its way: references to what lies in Ray's store."""

    key: int
    shop: Any
    """The workshop without its data, as bytes."""
    data: Any
    settings: ExecutorSettings


Reference = Any
"""Of something in Ray's store."""


@dataclass(frozen=True)
class Reply:
    """What came of a stack."""

    rows: Frozen
    """Columns with a row per order."""
    sums: bool
    """Whether the worker holds sums over these orders, too."""


class Worker:
    """An actor of Ray."""

    def __init__(self, environment: Mapping[str, str], device: str) -> None:
        """`environment` are variables by which native kernels are chosen."""
        os.environ.update(environment)
        torch.set_num_threads(1)
        keep_freed()
        self._device = device
        self._ray = package()
        self._shops: dict[int, tuple[Trainer, Evaluator]] = {}
        self._tensors: dict[Reference, Tensor] = {}
        self._sums: dict[int, Columns] = {}
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU there; install a build for CUDA, or remove executor.gpus")

    def where(self) -> tuple[str, int]:
        """(The machine that this is on, the number of the process)."""
        return self._ray.get_runtime_context().get_node_id(), os.getpid()

    def train(
        self, sent: Shipped, packed: bytes, tensors: Sequence[Reference | Frozen], limit: int | None, call: int
    ) -> Reply | Failed:
        """Train a stack; sums over its orders stay here, with those of the other stacks of this call."""
        try:
            trainer, _ = self._parts(sent)
            self._sums = {number: sums for number, sums in self._sums.items() if number == call}
            orders = unpack(packed, self._taken(tensors))
            rows, sums = divided(trainer(orders, limit))
            if sums:
                self._sums[call] = add(self._sums.get(call, {}), sums)
            return Reply(freeze(rows), bool(sums))
        except Exception as error:
            return Failed.of(error)

    def deliver(self, call: int, earlier: Frozen | Failed | None = None) -> Frozen | Failed:
        """The sums that are here, and those that another worker of this machine has delivered."""
        try:
            if isinstance(earlier, Failed):
                return earlier
            return freeze(add(thaw(earlier) if earlier else {}, self._sums.pop(call)))
        except Exception as error:
            return Failed.of(error)

    def test(
        self, sent: Shipped, tensors: Sequence[Reference | Frozen], batches: Sequence[int], on: Held, outputs: bool
    ) -> list[Part] | Failed:
        """What comes of batches of the test or validation set; `tensors` are weights, buffers and numbers of samples.

        All samples are numbered, so that the model gets copies of them: what it gets, it may change in place.
        """
        try:
            _, evaluator = self._parts(sent)
            w, buffers, samples = self._taken(tensors)
            return evaluator.parts(w, buffers, samples.cpu(), batches, on, outputs)
        except Exception as error:
            return Failed.of(error)

    def forget(self, key: int) -> None:
        """A workshop is not needed any more."""
        self._shops.pop(key, None)

    def _parts(self, sent: Shipped) -> tuple[Trainer, Evaluator]:
        if sent.key not in self._shops:
            shop: Shop = self._ray.cloudpickle.loads(self._ray.get(sent.shop))
            data: FederatedData = thaw(self._ray.get(sent.data))
            self._shops[sent.key] = shop.moved(data, self._device).parts(sent.settings)
        return self._shops[sent.key]

    def _taken(self, tensors: Sequence[Reference | Frozen]) -> list[Tensor]:
        """Copies: what lies in the store cannot be changed, and a rule that tries shall be told so, not crash."""
        held: dict[Reference, Tensor] = {}
        found = []
        for each in tensors:
            if isinstance(each, tuple):
                found.append(thaw(each).to(self._device, copy=True))
                continue
            known = held.get(each, self._tensors.get(each))
            held[each] = thaw(self._ray.get(each)).to(self._device, copy=True) if known is None else known
            found.append(held[each])
        self._tensors = held
        return found
