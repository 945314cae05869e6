"""How a few orders are trained in one process: one by one, or as a stack."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError
from fedkeel.local.batches import Batches, steps
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.loop import train
from fedkeel.local.oracles.client import ClientOracle
from fedkeel.local.oracles.stack import Gradient, StackOracle
from fedkeel.local.orders import Columns, Order, add, divided
from fedkeel.local.settings import LocalSettings
from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job
from fedkeel.methods.types import Message
from fedkeel.params import FlatModel, Layout


class Trainer(Protocol):
    """Trains orders that belong together, on one core."""

    def __call__(self, orders: Sequence[Order], limit: int | None = None, room: Tensor | None = None) -> Columns:
        """One row an order; the weights may be put into `room` [orders, D]."""
        ...


class OneByOne:
    """One client after the other on one model of its own, by autograd: the reference for everything faster."""

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        rule: ClientRule,
        local: LocalSettings,
        seed: int,
        channels_last: bool = False,
    ) -> None:
        self._model = FlatModel(copy.deepcopy(module).train(), channels_last)
        self._moving = _moving(rule, self._model.layout, self._model.w)
        self._data = data
        self._rule = rule
        self._local = local
        self._seed = seed

    def __call__(self, orders: Sequence[Order], limit: int | None = None, room: Tensor | None = None) -> Columns:
        """One row an order; leaves torch's global generators as it found them."""
        with torch.random.fork_rng(devices=[self._model.w.device] if self._model.w.is_cuda else []):
            parts = [divided(self._train(order, limit)) for order in orders]
        rows = [row for row, _ in parts]
        rates = {"lr": _rates([row.pop("lr") for row in rows])}
        sums = reduce(add, (sums for _, sums in parts))
        return rates | {name: torch.stack([row[name] for row in rows]) for name in rows[0]} | sums

    def _train(self, order: Order, limit: int | None) -> Columns:
        self._model.load(order.start, order.buffers)
        batches = Batches(self._data, self._local, self._seed, [order.drawn], [order.client], [order.epochs])
        rule = _rule(self._rule, order)
        where = self._seed, order.drawn, order.client
        oracle = ClientOracle(self._model, batches, self._local, *where, self._moving)
        number = partial(torch.tensor, device=order.start.device)
        job = Job(
            round=number([order.round]),
            start=order.start,
            buffers=order.buffers,
            epochs=number([order.epochs]),
            steps=number(batches.steps),
            lr=order.lr,
            momentum=self._local.momentum,
            samples=number([int(self._data.sizes[order.client])]),
            layout=self._model.layout,
            received=order.received,
            kept=order.kept,
            version=number([order.version]),
            slot=number([order.slot if order.fresh is not None else 0]),
            fresh=order.fresh,
            fresh_buffers=order.fresh_buffers,
            fresh_version=number([order.fresh_version]),
        )
        outcome = train(job, rule, oracle, limit)
        columns = _columns(outcome.w, outcome.job.lr, torch.from_numpy(oracle.loss)[0], torch.tensor(batches.steps[0]))
        return {
            **columns,
            "buffers": self._model.buffers,
            **_named("message", outcome.message),
            **_named("kept", outcome.kept),
            **_named("sum", outcome.job.sums),
        }


class Stacked:
    """All orders at once, as one stack of flat vectors [C, D]."""

    def __init__(
        self,
        gradient: Gradient,
        vmapped: Callable[[], VmappedGradient],
        layout: Layout,
        data: FederatedData,
        rule: ClientRule,
        local: LocalSettings,
        seed: int,
    ) -> None:
        """`vmapped` is for what `gradient` cannot say."""
        self._gradient = gradient
        self._vmapped = vmapped
        self._layout = layout
        self._data = data
        self._rule = rule
        self._local = local
        self._seed = seed

    def __call__(self, orders: Sequence[Order], limit: int | None = None, room: Tensor | None = None) -> Columns:
        """One row an order."""
        clients, epochs = [o.client for o in orders], [o.epochs for o in orders]
        batches = Batches(self._data, self._local, self._seed, [o.drawn for o in orders], clients, epochs)
        moving = _moving(self._rule, self._layout, orders[0].start)
        oracle = StackOracle(self._gradient, self._vmapped, batches, self._local, moving)
        device = orders[0].start.device

        def numbers(each: Sequence[int]) -> Tensor:
            return torch.tensor(each, device=device)[:, None]

        fresh = any(o.fresh is not None for o in orders)
        job = Job(
            round=numbers([o.round for o in orders]),
            start=_together([o.start for o in orders]),
            buffers=_together([o.buffers for o in orders]),
            epochs=numbers(epochs),
            steps=torch.from_numpy(batches.steps).to(device)[:, None],
            lr=_rates([o.lr for o in orders]),
            momentum=self._local.momentum,
            layout=self._layout,
            samples=torch.from_numpy(self._data.sizes[clients]).to(device)[:, None],
            received=_stacked([o.received for o in orders]),
            kept=_stacked([o.kept for o in orders]),
            version=numbers([o.version for o in orders]),
            slot=numbers([o.slot if o.fresh is not None else 0 for o in orders]),
            fresh=_together([o.start if o.fresh is None else o.fresh for o in orders]) if fresh else None,
            fresh_version=numbers([o.fresh_version for o in orders]),
        )
        rule = _rule(self._rule, orders[0])
        outcome = train(job, rule, oracle, limit, room)
        for name, tensor in {**outcome.message, **outcome.kept}.items():
            if tensor.dim() == 0 or len(tensor) != len(orders):
                raise FedkeelError(
                    f"{type(rule).__name__}: {name} has shape {list(tensor.shape)} for a stack of "
                    f"{len(orders)} clients; accepted: one row a client"
                )
        return {
            **_columns(outcome.w, _used(outcome.job), torch.from_numpy(oracle.loss), torch.from_numpy(batches.steps)),
            "buffers": job.buffers,
            **_named("message", outcome.message),
            **_named("kept", outcome.kept),
            **_named("sum", outcome.job.sums),
        }


def _rule(rule: ClientRule, order: Order) -> ClientRule:
    """By which an order is to be done."""
    if not order.survey:
        return rule
    if rule.survey is None:
        raise FedkeelError(f"{type(rule).__name__} answers no survey")
    return rule.survey


def _moving(rule: ClientRule, layout: Layout, like: Tensor) -> Tensor | None:
    """[D], one where the rule trains weights and zero elsewhere, unless it trains all."""
    return None if rule.trains == "all" else layout.mask(rule.trains).to(like)


def _columns(w: Tensor, lr: Tensor, loss: Tensor, steps: Tensor) -> Columns:
    # A sum is finite if all is; one that overflows belongs to weights that are lost as well.
    return {"w": w, "lr": lr, "loss": loss, "steps": steps, "finite": w.sum(-1).isfinite().cpu() & loss.isfinite()}


def _named(kind: str, message: Message) -> Columns:
    return {f"{kind}/{name}": tensor for name, tensor in message.items()}


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """One row each, without a copy where all are the same tensor."""
    first = tensors[0]
    return first.expand(len(tensors), *first.shape) if all(t is first for t in tensors) else torch.stack([*tensors])


def _used(job: Job) -> Tensor:
    """[C, most epochs], the rates of a stack, zero behind a client's last epoch."""
    return torch.where(torch.arange(job.lr.shape[1], device=job.lr.device) < job.epochs, job.lr, 0.0)


def _rates(lr: Sequence[Tensor]) -> Tensor:
    """[C, most epochs], shorter ones filled up with zeros."""
    if all(each is lr[0] for each in lr):
        return _together(lr)
    longest = max(map(len, lr))
    return torch.stack([pad(each, (0, longest - len(each))) for each in lr])


def _stacked(messages: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: _together([m[name] for m in messages]) for name in messages[0]}


def plan(orders: Sequence[Order], data: FederatedData, local: LocalSettings, stack: int | None) -> list[list[int]]:
    """Which orders train together, by their places, the longest first; without `stack`, each alone.

    A stack holds orders that received and kept the same kinds of things. Nothing else than these arguments decides,
    so the same orders make the same stacks on every machine.
    """
    sizes = data.sizes[[o.client for o in orders]]
    _, work = steps(sizes, np.array([o.epochs for o in orders]), local.batch_size)
    longest = np.argsort(-work, kind="stable").tolist()
    if stack is None:
        return [[row] for row in longest]
    alike: dict[object, list[int]] = {}
    for row in longest:
        alike.setdefault((_kind(orders[row].received), _kind(orders[row].kept)), []).append(row)
    return [part.tolist() for rows in alike.values() for part in np.array_split(rows, -(-len(rows) // stack))]


def _kind(message: Message) -> object:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in message.items()) if message else None
