"""How the orders of one stack are trained in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError
from fedkeel.local import generators
from fedkeel.local.batches import Batches
from fedkeel.local.executors.memory import Lender
from fedkeel.local.gradients.gradient import Gradient
from fedkeel.local.loop import Between, Outcome, train, walks_by_epoch
from fedkeel.local.mean import exact_mean
from fedkeel.local.optimizer import Adam
from fedkeel.local.oracle import BatchOracle, whole_epochs
from fedkeel.local.settings import LocalSettings
from fedkeel.local.work import steps
from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job
from fedkeel.methods.returned import left_alone
from fedkeel.methods.types import Message, Sends
from fedkeel.params import Layout
from fedkeel.wire.declared import not_rows, undeclared
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import MEAN, SUM, Columns, Order, Same, divided, stacked, stacked_fresh
from fedkeel.wire.transform import Chain, Where, apart, decoded, encoded

_SPECIAL = {"lr", "slot", "fresh"}
_COMMON = sorted({each.name for each in fields(Order)} & {each.name for each in fields(Job)} - _SPECIAL)
"""What a job has of its orders as they are."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains the orders of a stack at once, on one core; with a gradient that is `alone`, stacks of one."""

    gradient: Gradient
    layout: Layout
    data: FederatedData
    rule: ClientRule
    local: LocalSettings
    seed: int
    wire: Chain
    # Weights that stay lie in memory that is used again, as large results do in `InProcess`.
    lender: Lender = field(default_factory=lambda: Lender(shared=False))

    def __call__(
        self,
        orders: Sequence[Order],
        limit: int | None = None,
        out: Tensor | None = None,
        between: Between | None = None,
        encode: bool = False,
    ) -> Columns:
        """One row an order; the weights may be put into `out` [orders, D].

        Weights that are to stay where they are (`Orders.stay`) have no columns. With `encode`, what travels takes the
        place of the weights: `update`, and `beside/...` of transforms. Leaves torch's global generators as it found
        them.
        """
        assert not self.gradient.alone or len(orders) == 1
        orders = Orders.of(orders)
        batches = self._batches(orders)
        rule = self._rule(orders)
        if self._by_epoch(rule, orders, batches) and (np.diff(begun := batches.begun(limit)) > 0).any():
            rows = np.argsort(-begun, kind="stable")
            return _in_order(self(orders.pick(rows), limit), rows, out)
        start = orders.start[0]
        trained = self.rule.trains
        moving = None if trained == "all" else self.layout.mask(trained).to(start)
        oracle = BatchOracle(self.gradient, batches, self.local, moving)
        wire = Chain() if orders.survey[0] else self.wire
        job = self._job(orders, batches)
        state, own = apart(job.kept)
        job = replace(job, kept=own)
        if orders.stay:
            room = {"w": ((len(orders), len(start)), start.dtype)}
            out = None if start.is_cuda else self.lender.lend(room)[1]["w"]
        given = [job.start, *job.received.values(), *job.kept.values()]  # a view of a tensor shares its version
        devices = [start.device] if start.is_cuda else []
        with generators.restored(devices, enabled=self.gradient.alone):
            oracle.restore(job.buffers)
            # With a wire, the server reads other weights than were trained: only those are put into `out`.
            with left_alone(rule, "a hook", given):
                adam = None if self.local.optimizer == "sgd" else Adam(self.local, moving)
                outcome = train(job, rule, oracle, limit, out if orders.stay or not wire else None, adam, between)
        loss = oracle.loss
        sends = rule.sends(self.layout, orders.received[0])
        done = outcome.job.steps[:, 0].cpu()
        _check(rule, outcome, sends, job.lr[:, : int(outcome.job.epochs.max())])
        finite = oracle.finite(outcome.w) & torch.from_numpy(np.isfinite(loss))
        sent: Columns = {"w": outcome.w}
        message, kept = outcome.message, outcome.kept
        if wire:
            travels = None if rule.uploads == "all" else self.layout.mask(rule.uploads).to(start.device)
            where = Where(self.seed, orders.drawn, orders.client)
            upload, after = encoded(wire, outcome.w, job.start, travels, message, sends, state, where)
            if encode:
                sent, read = {"update": upload.update, **_named("beside", upload.beside)}, upload.messages
            else:
                w, read = decoded(wire, upload, outcome.w, job.start, travels)
                sent = {"w": w}
            message = {**message, **read}
            kept = {**kept, **after}
        sums = _named("sum", outcome.job.sums.totals)
        if orders.share is not None:
            shares = torch.from_numpy(orders.share).to(start.device)
            sums[SUM + MEAN] = exact_mean(sent["w"], shares, self.gradient.threads)
            if wire:
                sent["intact"] = sent["w"].isfinite().all(1)
        if orders.stay:
            sent["w"] = start.new_empty(len(orders), 0)
        return {
            **sent,
            "lr": _used(outcome.job),
            "loss": torch.from_numpy(loss),
            "steps": done,
            "finite": finite,
            "buffers": oracle.buffers,
            **_named("message", message),
            **_named("kept", kept),
            **sums,
        }

    def _rule(self, orders: Orders) -> ClientRule:
        rule = self.rule.survey if orders.survey[0] else self.rule
        assert rule is not None
        return rule

    def _by_epoch(self, rule: ClientRule, orders: Orders, batches: Batches) -> bool:
        """Whether the clients will walk through their epochs together: who begins the fewest must come last."""
        whole = whole_epochs(self.gradient, batches, self.local)
        return whole and walks_by_epoch(rule, self.local.momentum) and orders.all_have("fresh", None)

    def _batches(self, orders: Orders) -> Batches:
        drawn = orders.drawn, orders.client, orders.epochs
        by_number = self.gradient.reads_by_number
        return Batches(self.data, self.local, self.seed, *drawn, orders.start[0].dtype, by_number)

    def _job(self, orders: Orders, batches: Batches) -> Job:
        device = orders.start[0].device
        fresh = None if orders.all_have("fresh", None) else stacked_fresh(orders, device)
        got = [each is not None for each in orders.fresh] if fresh is not None else False
        return Job(
            **{name: stacked(getattr(orders, name), device) for name in _COMMON},
            lr=_rates(orders.lr),
            slot=stacked(np.where(got, orders.slot, 0), device),
            fresh=fresh,
            steps=torch.from_numpy(batches.steps).to(device)[:, None],
            samples=torch.from_numpy(batches.sizes).to(device)[:, None],
            momentum=self.local.momentum,
            layout=self.layout,
            nesterov=self.local.nesterov,
            curve=self.local.curve,
        )


def _in_order(part: Columns, rows: NDArray[np.int64], out: Tensor | None) -> Columns:
    """What came of orders that were trained in another order, as they were asked for; weights may be put into `out`."""
    columns, sums = divided(part)
    back = torch.from_numpy(np.argsort(rows)).to(part["w"].device)
    sorted_ = {name: tensor.index_select(0, back) for name, tensor in columns.items()}
    if out is not None:
        sorted_["w"] = out.copy_(sorted_["w"])
    return sorted_ | sums


def _check(rule: ClientRule, outcome: Outcome, sends: Mapping[str, Sends], lr: Tensor) -> None:
    """Whether everything has a row per client, rates are those of `lr`'s epochs, and what goes up is declared."""
    if outcome.job.lr.shape != lr.shape:
        raise FedkeelError(
            f"{type(rule).__name__}: the job's learning rates must be {list(lr.shape)}, one row per client and one "
            f"rate per epoch; got {list(outcome.job.lr.shape)}"
        )
    reason = undeclared(sends, outcome.message, outcome.job.sums.totals, outcome.w)
    for name, kept in outcome.kept.items():
        reason = reason or not_rows(name, kept, len(outcome.w))
    if reason:
        raise FedkeelError(f"{type(rule).__name__}: {reason}")


def _named(kind: str, message: Message) -> Columns:
    return {f"{kind}/{name}": tensor for name, tensor in message.items()}


def _used(job: Job) -> Tensor:
    """[C, most epochs], the rates of a stack, zero behind a client's last epoch."""
    return torch.where(torch.arange(job.lr.shape[1], device=job.lr.device) < job.epochs, job.lr, 0.0)


def _rates(lr: Sequence[Tensor]) -> Tensor:
    """[C, most epochs], shorter ones filled up with zeros."""
    if isinstance(lr, Same) or all(each is lr[0] for each in lr):
        return lr[0].expand(len(lr), -1)
    longest = max(map(len, lr))
    filled = [each if len(each) == longest else pad(each, (0, longest - len(each))) for each in lr]
    rates: Tensor = stacked(filled, lr[0].device)
    return rates


def plan(orders: Sequence[Order], data: FederatedData, local: LocalSettings, stack: int | None) -> list[list[int]]:
    """Which orders train together, by their places, the longest first; without `stack`, each alone.

    A stack holds orders that received and kept the same kinds of things. Nothing else than these arguments decides,
    so the same orders make the same stacks on every machine.
    """
    orders = Orders.of(orders)
    _, work = steps(data.sizes[orders.client], orders.epochs, local)
    longest = np.argsort(-work, kind="stable")
    if stack is None:
        return [[row] for row in longest.tolist()]
    received, kept = orders.received, orders.kept
    alike: dict[object, list[int]] = {}
    if isinstance(received, Same) and isinstance(kept, Same):
        alike[None] = longest.tolist()
    else:
        for row in longest.tolist():
            alike.setdefault((_kind(received[row]), _kind(kept[row])), []).append(row)
    return [part.tolist() for rows in alike.values() for part in np.array_split(rows, -(-len(rows) // stack))]


def _kind(message: Message) -> object:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in message.items()) if message else None
