"""Clients that are lost in a survey: the server plans again with the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import Experiment, FedkeelError
from fedkeel.methods.server import Answers
from fedkeel.params import FlatModel
from fedkeel.runner.core import new_core
from fedkeel.server import core as core_module
from fedkeel.server import events as ev
from fedkeel.server.core import Core
from fedkeel.server.paces import Barrier, Concurrency, Pace, Periodic
from tests.helpers import federation
from tests.helpers.world import TestWorld

CLIENTS = 4
SIZES = np.array([2, 4, 6, 8])


def server(**settings: Any) -> Core:
    known = {"clients": CLIENTS, "per_round": CLIENTS, "rounds": 3, "dtype": "float64", "local": {"epochs": 3}}
    described = Experiment(algorithm="fedent", **{**known, **settings})
    return new_core(described, SIZES, FlatModel(federation.net().double()), lambda: np.full(CLIENTS, 2))


@dataclass
class Losing(TestWorld):
    """Loses these clients, in one survey after the other."""

    gone: list[list[int]] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)

    def tell(self, event: ev.Event) -> list[ev.Command]:
        events, said = [event], list[ev.Command]()
        while events:
            for command in self.core.on(events.pop(0)):
                said.append(command)
                if isinstance(command, ev.Send):
                    self.orders |= {order.client: order for order in command.orders}
                if isinstance(command, ev.Survey):
                    self.asked.append(command.orders.client.tolist())
                    events.append(self._answer(command))
        return said

    def _answer(self, survey: ev.Survey) -> ev.Event:
        if self.gone:
            return ev.Unanswered(self.time, self.gone.pop(0))
        ones = torch.ones(len(survey.orders), 1)
        return ev.Answered(self.time, Answers({"q": ones, "h": ones}, {}, ones))


def test_the_plan_is_run_again_with_fewer_clients() -> None:
    world = Losing(server(), gone=[[1], [0, 3]])
    said = world.wake()
    assert world.asked == [[0, 1, 2, 3], [0, 2, 3], [2]]
    (send,) = [command for command in said if isinstance(command, ev.Send)]
    assert send.orders.client.tolist() == [2]
    assert world.core.at_work.clients == [2]
    assert "rate" in send.orders.received[0]


def test_those_who_were_lost_may_be_drawn_again() -> None:
    world = Losing(server(), collects=False, gone=[[1]])
    world.wake()
    for client in (0, 2, 3):
        world.upload(client)
    assert world.core.round == 2
    world.wake()
    assert world.asked[-1] == [0, 1, 2, 3]


def test_a_cohort_that_is_lost_as_a_whole_leaves_the_server_able_to_go_on() -> None:
    world = Losing(server(), gone=[[0, 1], [2, 3]])
    assert world.wake()[-1] == ev.WakeMe(ev.When.DEVICE)
    assert len(world.core.at_work) == 0
    assert world.core.waves.asked is None
    world.wake()
    assert world.core.at_work.clients == [0, 1, 2, 3]


def test_a_server_whose_surveys_are_never_answered_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "STARVED", 3)
    world = Losing(server(), gone=[[0, 1, 2, 3]] * 9)
    for _ in range(3):
        world.wake()
    with pytest.raises(FedkeelError, match="the server starves"):
        world.wake()


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (Concurrency(4, busy_limit=4), ev.WakeMe(ev.When.DEVICE)),
        (Periodic(4, seconds=5.0, busy_limit=4), ev.WakeMe(ev.When.DEVICE, 5.0)),
        (Barrier(4), ev.WakeMe(ev.When.DEVICE)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_server_is_woken_after_a_survey_that_nobody_answered_at_every_pace(pace: Pace, expected: ev.WakeMe) -> None:
    core = server()
    core.pace = pace
    world = Losing(core, gone=[[0, 1, 2, 3]])
    assert world.wake()[-1] == expected
    world.wake()
    assert core.at_work.clients == [0, 1, 2, 3]
