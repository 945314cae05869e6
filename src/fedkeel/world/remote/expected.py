"""From what a client sent to what the server reads: names, shapes and types are those that the server expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from fedkeel.errors import label, shown
from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Fresh
from fedkeel.params import Layout
from fedkeel.wire.orders import SUM, Columns, Order, Trained, add, divided
from fedkeel.wire.sizes import WITH_BUFFERS
from fedkeel.wire.transform import Chain, Upload, decoded
from fedkeel.world.remote.message import Message, finite

MESSAGE, BESIDE = "message/", "beside/"
MOST_HEADER = 1 << 20
"""Bytes of an upload beside its tensors."""


MOST_RATE = 1e6
"""How many times the learning rate that it was sent a client's own rate may be at most."""


class ObjectionError(ValueError):
    """What is wrong with an upload."""


def sent_columns(columns: Columns, rule: ClientRule, layout: Layout) -> Columns:
    """Of a trainer's columns, what goes up: only the weights that the method sends, and nothing that is kept."""
    up = {name: each for name, each in columns.items() if not name.startswith("kept/")}
    if "w" in up and rule.uploads != "all":
        up["w"] = up["w"][:, layout.mask(rule.uploads).to(up["w"].device)]
    if rule.uploads not in WITH_BUFFERS:
        up.pop("buffers", None)
    return up


@dataclass
class Reader:
    """Reads uploads; `trial` trains an order for one step on samples of the server's, and so shows what will come."""

    run: str
    rule: ClientRule
    layout: Layout
    wire: Chain
    trial: Callable[[Order], Columns]
    steps: Callable[[int, int], int]
    """How many mini-batches so many epochs of a client have."""
    most_steps: int | None = None
    """The most mini-batches of a job whose path the server can follow, if there is a limit."""
    _known: dict[tuple[Any, ...], dict[str, tuple[list[int], torch.dtype]]] = field(default_factory=dict)

    def most(self, order: Order) -> int:
        """The bytes that an upload of this order has at most."""
        shapes = self._shapes(order).values()
        return MOST_HEADER + sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes)

    def answer(self, order: Order, message: Message | None) -> Trained:
        """What a client answered to a survey, if it did."""
        if message is None:
            raise ObjectionError("it did not answer")
        self._check_tensors(replace(order, survey=True), message)
        if not bool(message.tensors["finite"].all()):
            raise ObjectionError(f"its training diverged, with a loss of {float(message.tensors['loss'][0]):g}")
        self._check_finite(message, (MESSAGE, SUM, "loss"))
        return Trained({**message.tensors})

    def upload(self, order: Order, fresh: Fresh[int] | None, message: Message) -> tuple[Order, Trained]:
        """The order as it was done, and its result; `fresh` is the model that was handed out in the middle."""
        told = message.facts
        if told.get("run") != self.run:
            raise ObjectionError("it belongs to another run")
        if _whole(told, "client") != order.client:
            raise ObjectionError(f"it says that it comes from client {told['client']}")
        epochs, slot = (_whole(told, name) for name in ("epochs", "slot"))
        if not 1 <= epochs <= order.epochs:
            raise ObjectionError(f"it claims {epochs} epochs; 1 to {order.epochs} were asked for")
        if slot and (fresh is None or not 0 < slot < epochs):
            raise ObjectionError(f"it claims a merge after {slot} epochs, but got no model for that")
        done = replace(order, epochs=epochs, lr=order.lr[:epochs], slot=slot, fresh=fresh if slot else None)
        self._check_tensors(done, message)
        tensors = dict(message.tensors)
        steps, expected = int(tensors["steps"][0]), self.steps(order.client, epochs)
        if steps != expected:
            raise ObjectionError(f"it claims {steps} steps; {epochs} epochs of the client have {expected}")
        if self.most_steps is not None and steps > self.most_steps:
            raise ObjectionError(
                f"it claims {steps:,} steps; a job may have {self.most_steps:,} with local.schedule.over=steps"
            )
        # A client whose training diverged says so; the gate judges it, and also what else is sent.
        self._check_finite(message, (SUM, "loss", "lr") if bool(tensors["finite"][0]) else ("lr",))
        self._check_rates(done, tensors["lr"][0])
        w, messages = self._weights(order, tensors)
        buffers = tensors.get("buffers", order.buffers[None])
        sums = {name: each for name, each in tensors.items() if name.startswith(SUM)}
        own = {name: tensors[name] for name in ("lr", "loss", "steps", "finite")}
        return done, Trained({"w": w, "buffers": buffers, **own, **messages, **sums})

    def _weights(self, order: Order, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Columns]:
        """(The weights [1, D], the messages); weights that do not travel are those that were sent."""
        start = order.start[None]
        messages = {name: each for name, each in tensors.items() if name.startswith(MESSAGE)}
        travels = None if self.rule.uploads == "all" else self.layout.mask(self.rule.uploads)
        if self.wire:
            sends = self.rule.sends(self.layout, order.received)
            wide = {
                n.removeprefix(MESSAGE): t for n, t in messages.items() if sends[n.removeprefix(MESSAGE)].goes_through
            }
            beside = {name.removeprefix(BESIDE): each for name, each in tensors.items() if name.startswith(BESIDE)}
            w, read = decoded(self.wire, Upload(tensors["update"], wide, beside), start, start, travels)
            return w, {**messages, **{MESSAGE + name: each for name, each in read.items()}}
        w = tensors["w"]
        return (w if travels is None else start.masked_scatter(travels, w)), messages

    def _check_tensors(self, order: Order, message: Message) -> None:
        expected = self._shapes(order)
        if message.tensors.keys() != expected.keys():
            wrong = sorted(message.tensors.keys() ^ expected.keys())
            names = ", ".join(label(name) for name in wrong[:5])
            raise ObjectionError(f"its tensors have other names than expected: {names}")
        for name, tensor in message.tensors.items():
            shape, dtype = expected[name]
            if list(tensor.shape) != shape:
                raise ObjectionError(f"{name} must have the shape {shape}; got {list(tensor.shape)}")
            if tensor.dtype != dtype:
                raise ObjectionError(f"{name} must be {dtype}; got {tensor.dtype}")

    def _check_finite(self, message: Message, prefixes: tuple[str, ...]) -> None:
        for name, tensor in message.tensors.items():
            if name.startswith(prefixes) and not finite(tensor):
                raise ObjectionError(f"{name} holds NaN or infinite numbers")

    def _check_rates(self, order: Order, lr: Tensor) -> None:
        """Methods divide by learning rates, or step by them: only a rule that sets its own may tell others."""
        most = MOST_RATE * float(order.lr.max())
        if not self.rule.own_rates and not torch.equal(lr, order.lr):
            raise ObjectionError(
                f"it claims other learning rates than it was sent, up to {float(lr.max()):g}; the client rule of a "
                "method whose clients set their own must say so (own_rates = True)"
            )
        if not bool(((lr >= 0) & (lr <= most)).all()):
            raise ObjectionError(f"lr must be from 0 to {most:g}; got {float(lr.min()):g} to {float(lr.max()):g}")

    def _shapes(self, order: Order) -> dict[str, tuple[list[int], torch.dtype]]:
        """By the name of a tensor: its shape and type."""
        received = tuple((name, tuple(each.shape)) for name, each in sorted(order.received.items()))
        key = order.survey, order.epochs, received
        if key not in self._known:
            columns = self.trial(replace(order, slot=0, fresh=None))
            up = answered(columns) if order.survey else sent_columns(columns, self.rule, self.layout)
            self._known[key] = {name: (list(each.shape), each.dtype) for name, each in up.items()}
        return self._known[key]


def answered(columns: Columns) -> Columns:
    """Of a trainer's columns, the answer to a survey: messages, sums, and whether all is finite."""
    return {
        name: each for name, each in columns.items() if name.startswith((MESSAGE, SUM)) or name in ("finite", "loss")
    }


def joined_answers(answers: Sequence[Trained]) -> Trained:
    """Answers of single clients as one; their sums are added up."""
    rows, sums = zip(*(divided(answer.columns) for answer in answers), strict=True)
    return Trained({name: torch.cat([part[name] for part in rows]) for name in rows[0]} | reduce(add, sums))


def _whole(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    if type(value) is not int:
        raise ObjectionError(f"{name} must be a whole number; got {shown(value)}")
    return value
