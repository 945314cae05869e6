"""The remote world with two sites, whose nodes a test plays, on a clock that it winds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkeel import Experiment
from fedkeel.params import FlatModel
from fedkeel.runner.core import new_core
from fedkeel.server import events as ev
from fedkeel.wire.orders import Columns, Order
from fedkeel.wire.transform import Chain
from fedkeel.world.remote.expected import Reader
from fedkeel.world.remote.limits import Limits
from fedkeel.world.remote.pooling import Pooling
from fedkeel.world.remote.remote import Remote
from fedkeel.world.remote.roster import Member, Roster
from tests.helpers import federation
from tests.helpers.scripted import Clock, Scripted

LIMITS = Limits(first=100.0, least=5.0, margin=3.0, retries=1, poll=0.1, away=300.0)


class Scene:
    """Two sites, of which a test plays the nodes 10 and 11."""

    def __init__(
        self, algorithm: Any = "fedavg", limits: Limits = LIMITS, interrupts: bool = False, **more: Any
    ) -> None:
        self.clock, self.link, self.lines = Clock(), Scripted([10, 11], interrupts), list[str]()
        known = {"clients": 2, "per_round": 2, "rounds": 3, "local": {"epochs": 2, "batch_size": 5}}
        experiment = Experiment(algorithm=algorithm, **{**known, **more})
        samples = np.array([10, 20])
        self.core = new_core(experiment, samples, FlatModel(federation.net()), lambda: np.full(2, 2), persists=True)
        self.roster = Roster(
            self.link, ["a", "b"], "f" * 32, 1, pooling=Pooling(lambda _: pytest.fail("unasked")), clock=self.clock,
            tell=self.lines.append, nodes_of={"a": 10, "b": 11}, admit=lambda _: None,
        )  # fmt: skip
        for client in (0, 1):
            self.roster.members[client] = Member(client, 10 + client, {"samples": [10, 20][client]}, ready=True)
        rule, layout = self.core.model.client_rule, self.core.model.layout
        reader = Reader("f" * 32, rule, layout, Chain(), self.trial, lambda client, epochs: epochs * (2 + 2 * client))
        self.remote = Remote(
            self.core, self.link, self.roster, reader, limits, samples, clock=self.clock, sleep=self.clock.sleep
        )

    @staticmethod
    def trial(order: Order) -> Columns:
        """As a trainer would have it."""
        return {
            "w": order.start[None].clone(),
            "buffers": order.buffers[None],
            "lr": order.lr[None],
            "loss": torch.ones(1, dtype=torch.float64),
            "steps": torch.tensor([1]),
            "finite": torch.tensor([True]),
        } | ({"message/q": torch.ones(1, 1), "message/h": torch.ones(1, 1)} if order.survey else {})

    def events(self, limit: float = 1e9) -> Iterator[ev.Event]:
        return self.remote.events(limit)

    def next(self, limit: float = 1e9) -> ev.Event:
        return next(self.remote.events(limit))

    def dispatch(self) -> None:
        """The first jobs of both."""
        self.remote.carry_out(ev.WakeMe(ev.When.NOW))
        for command in self.core.on(self.next()):
            self.remote.carry_out(command)

    def done(self, client: int, rates: Callable[[Tensor], Tensor] = lambda lr: lr, **facts: Any) -> None:
        """A client's honest answer, but for the facts and the rates that it tells."""
        _, asked = self.link.last(10 + client)
        told = {name: asked.facts[name] for name in ("job", "client", "version", "epochs")} | {"slot": 0} | facts
        epochs = told["epochs"]
        held = {
            "w": asked.tensors["w"][None] + 1,
            "buffers": asked.tensors["buffers"][None],
            "lr": rates(asked.tensors["lr"][None, :epochs]),
            "loss": torch.ones(1, dtype=torch.float64),
            "steps": torch.tensor([epochs * (2 + 2 * client)]),
            "finite": torch.tensor([True]),
        }
        self.link.answer(10 + client, "done", held, **told)
