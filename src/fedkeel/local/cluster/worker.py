"""A worker on a cluster: trains and tests what it is sent; data and model come to its machine once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.data.federated import FederatedData, Held
from fedkeel.local.cluster.alike import Facts, facts
from fedkeel.local.cluster.connection import package
from fedkeel.local.cluster.freeze import Frozen, freeze, thaw
from fedkeel.local.cluster.store import Parcel, Reference
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

    shop: Reference
    """The workshop without its data, as bytes."""
    data: Reference
    settings: ExecutorSettings
    threads: int
    """Of PyTorch, in an operation: their number has a bearing on results."""
    precision: str
    """Of PyTorch's products of float32 matrices."""


@dataclass(frozen=True)
class Stack:
    """Orders that train together."""

    packed: bytes
    numbers: Sequence[int]
    """Of the tensors that they hold, in the parcel."""


@dataclass(frozen=True)
class Reply:
    """What came of some stacks."""

    rows: Frozen
    """For each stack, columns with a row per order."""
    sums: bool
    """Whether the worker holds sums over these orders, too."""
    seconds: float
    """That the training took."""


@dataclass(frozen=True)
class Stuck:
    """What went wrong, and with which of the stacks."""

    place: int
    failed: Failed


class Worker:
    """An actor of Ray."""

    def __init__(self, environment: Mapping[str, str], folder: str, device: str) -> None:
        """The variables by which native kernels are chosen, and the caller's working folder."""
        os.environ.update(environment)
        with suppress(OSError):  # who needs what is there is told that it is missing
            os.chdir(folder)
        keep_freed()
        self._device = device
        self._ray = package()
        self._shops: dict[int, tuple[Trainer, Evaluator, Shipped]] = {}
        self._tensors: dict[int, Tensor] = {}
        self._sums: dict[int, Columns] = {}
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU there; install a build for CUDA, or remove executor.gpus")

    def where(self) -> tuple[str, str, int, Facts]:
        """(The machine that this is on, its address, the number of the process, what must be the same everywhere)."""
        here = self._ray.get_runtime_context().get_node_id(), str(self._ray.util.get_node_ip_address())
        return *here, os.getpid(), facts()

    def train(
        self, key: int, opened: Shipped | None, stacks: Sequence[Stack], parcel: Parcel, limit: int | None, call: int
    ) -> Reply | Stuck:
        """Train some stacks; sums over their orders stay here, with those of the other stacks of this call.

        `opened` is the workshop with this key, which stays until it is forgotten.
        """
        made, begun = list[Columns](), perf_counter()
        found: Columns | None = None
        try:
            trainer, _ = self._parts(key, opened)
            held = self._taken(parcel)
            self._sums = {number: sums for number, sums in self._sums.items() if number == call}
            for stack in stacks:
                orders = unpack(stack.packed, [held[number] for number in stack.numbers])
                rows, sums = divided(trainer(orders, limit))
                found = add(found, sums)
                made.append(rows)
            if found:
                self._sums[call] = add(self._sums.get(call), found)
            return Reply(freeze(made), bool(found), perf_counter() - begun)
        except Exception as error:
            return Stuck(len(made), Failed.of(error))

    def deliver(self, call: int, earlier: Frozen | Failed | None = None) -> Frozen | Failed:
        """The sums that are here, and those that another worker of this machine has delivered."""
        try:
            if isinstance(earlier, Failed):
                return earlier
            return freeze(add(thaw(earlier) if earlier else None, self._sums.pop(call)))
        except Exception as error:
            return Failed.of(error)

    def test(
        self,
        key: int,
        opened: Shipped | None,
        numbers: Sequence[int],
        parcel: Parcel,
        batches: Sequence[int],
        on: Held,
        outputs: bool,
    ) -> list[Part] | Failed:
        """What comes of batches of the test or validation set, given weights, buffers and numbers of samples.

        All samples are numbered, so that the model gets copies of them: what it gets, it may change in place.
        """
        try:
            _, evaluator = self._parts(key, opened)
            held = self._taken(parcel)
            w, buffers, samples = (held[number] for number in numbers)
            return evaluator.parts(w, buffers, samples.cpu(), batches, on, outputs)
        except Exception as error:
            return Failed.of(error)

    def forget(self, key: int) -> None:
        """A workshop is not needed any more."""
        self._shops.pop(key, None)

    def _parts(self, key: int, opened: Shipped | None) -> tuple[Trainer, Evaluator]:
        if opened is not None:
            shop: Shop = self._ray.cloudpickle.loads(self._ray.get(opened.shop))
            data: FederatedData = thaw(self._ray.get(opened.data))
            self._shops[key] = *shop.moved(data, self._device).parts(opened.settings), opened
        trainer, evaluator, told = self._shops[key]
        torch.set_num_threads(told.threads)
        torch.set_float32_matmul_precision(told.precision)
        return trainer, evaluator

    def _taken(self, parcel: Parcel) -> Mapping[int, Tensor]:
        """Copies: what lies in the store cannot be changed, and a rule that tries shall be told so, not crash."""
        held = {number: self._tensors[number] for number in parcel.here}
        come = thaw(parcel.fresh) | {number: thaw(self._ray.get(each)) for number, each in parcel.stored.items()}
        held |= {number: tensor.to(self._device, copy=True) for number, tensor in come.items()}
        self._tensors = {number: tensor for number, tensor in held.items() if number >= 0}
        return held
