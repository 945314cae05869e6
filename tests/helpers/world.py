"""A world for tests of the server's core: clients do something when a test says so, and time is what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fedkeel.methods.server import Answers
from fedkeel.server import events as ev
from fedkeel.server.core import Core
from fedkeel.wire.orders import Order, Trained, assembled


@dataclass
class Trip:
    dispatched: float
    began: float
    finished: float
    arrives: float
    asked: float | None = None
    merged: float | None = None
    resumed: float | None = None


@dataclass
class TestWorld:
    """Carries out commands at once; `said` is all that the server has asked for."""

    __test__ = False

    core: Core
    collects: bool = True
    """Whether uploads come as headers, whose content the server collects; else with their content."""
    time: float = 0.0
    orders: dict[int, Order] = field(default_factory=dict)
    said: list[ev.Command] = field(default_factory=list)

    def tell(self, event: ev.Event) -> list[ev.Command]:
        """Everything that an event leads to."""
        events, said = [event], list[ev.Command]()
        while events:
            for command in self.core.on(events.pop(0)):
                said.append(command)
                match command:
                    case ev.Send():
                        self.orders |= {order.client: order for order in command.orders}
                    case ev.Survey():
                        answer = {"q": torch.ones(len(command.orders), 1), "h": torch.ones(len(command.orders), 1)}
                        events.append(ev.Answered(self.time, Answers(answer, {}, torch.ones(len(command.orders), 1))))
                    case ev.Cancel():
                        events += [self.lost(client, command.why) for client in command.clients]
                    case ev.Collect():
                        events.append(ev.Delivered(self.time, assembled([trained(each) for each in command.orders])))
        self.said += said
        return said

    def wake(self) -> list[ev.Command]:
        return self.tell(ev.Wake(self.time))

    def lost(self, client: int, why: str) -> ev.Lost:
        return ev.Lost(self.time, client, self.orders[client].job, why, Trip(0.0, 0.0, self.time, self.time))

    def upload(self, client: int, content: Trained | None = None, trip: Trip | None = None) -> list[ev.Command]:
        order = self.orders[client]
        if content is None and not self.collects:
            content = trained(order)
        trip = trip or Trip(0.0, 0.0, self.time, self.time)
        return self.tell(ev.Arrived(self.time, client, order.job, order.version, 8, order, trip, content))

    def again(self, client: int, job: int, version: int) -> list[ev.Command]:
        """An upload that nobody waits for."""
        return self.tell(ev.Arrived(self.time, client, job, version, 8, None))


def trained(order: Order) -> Trained:
    """Client c moves every weight by c + 1."""
    return Trained(
        {
            "w": (order.start + order.client + 1)[None],
            "buffers": order.buffers[None],
            "lr": order.lr[None],
            "steps": torch.tensor([order.epochs]),
            "loss": torch.ones(1, dtype=torch.float64),
            "finite": torch.ones(1, dtype=torch.bool),
        }
    )
