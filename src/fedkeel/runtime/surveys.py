"""What a server asks the clients of a round before they train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.errors import FedkeelError
from fedkeel.local.batches import steps
from fedkeel.local.orders import Executor, Order, Trained, divergence
from fedkeel.local.settings import LocalSettings
from fedkeel.methods.client import ClientRule
from fedkeel.methods.server import Answers, Brief, Plan, ServerState
from fedkeel.methods.types import Message, nbytes


class Surveys:
    """Of the clients of one round; counts what they cost."""

    def __init__(
        self, rule: ClientRule | None, orders: Sequence[Order], executor: Executor | None, trial: bool
    ) -> None:
        """`orders` are their jobs; in a trial, the first answer takes one step and serves all questions."""
        self._rule, self._orders, self._executor, self._trial = rule, orders, executor, trial
        self._known: Answers | None = None
        self.count = 0
        self.bytes_up = np.zeros(len(orders), dtype=np.int64)
        self.bytes_down = np.zeros(len(orders), dtype=np.int64)

    def __call__(self, question: Brief) -> Answers:
        """What the clients say."""
        if self._trial and self._known is not None:
            return self._known
        if self._rule is None:
            raise FedkeelError("the server rule asks before training, but the client rule answers no survey")
        assert self._executor is not None
        told = rows(question, len(self._orders))
        orders = [
            replace(order, received={**order.received, **more}, survey=True)
            for order, more in zip(self._orders, told, strict=True)
        ]
        trained = self._executor.train(orders, 1 if self._trial else self._rule.limit)
        for row in torch.nonzero(~trained.finite)[:1, 0].tolist():
            raise divergence(orders[row], trained, row)
        self.count += 1
        self.bytes_down += [nbytes(each) for each in told]
        self.bytes_up += uploaded(self._rule, trained).numpy()
        self._known = Answers(trained.messages, trained.sums, torch.tensor([[order.epochs] for order in orders]))
        return self._known

    def work(self, sizes: NDArray[np.int64], local: LocalSettings) -> NDArray[np.int64]:
        """[m], samples that one of them takes each client; who runs out of time has used as much as the others."""
        if self._rule is None:
            return np.zeros_like(sizes)
        if self._rule.limit is None:
            return sizes * local.epochs
        batch, _ = steps(sizes, np.ones_like(sizes), local.batch_size)
        return sizes if self._rule.whole else np.minimum(batch * self._rule.limit, sizes * local.epochs)


def follow(plan: Plan, ask: Callable[[Brief], Answers]) -> tuple[ServerState, Brief]:
    """What the server's plan comes to."""
    answers: Any = None
    while True:
        try:
            answers = ask(plan.send(answers))
        except StopIteration as end:
            state, brief = end.value
            return state, brief


def rows(brief: Brief, count: int) -> list[Message]:
    """What each of so many clients is told."""
    return [{**brief.shared, **{name: each[row] for name, each in brief.each.items()}} for row in range(count)]


def uploaded(rule: ClientRule, trained: Trained) -> Tensor:
    """[m], bytes that each client sends beside its weights; what is summed up travels in their type."""
    summed = sum(each.numel() for each in trained.sums.values()) * trained.w.element_size()
    return rule.weigh(trained.messages, len(trained.w)) + summed
