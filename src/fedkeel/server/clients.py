"""The clients at work: what they were sent, and the versions of the model that they work on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedkeel.server.events import Arrived, Trip
from fedkeel.server.stateful import Stateful
from fedkeel.wire.orders import Order


@dataclass(slots=True, eq=False)
class Sent:
    """A job as the server sent it."""

    order: Order
    draws: int | None
    """How often the client was drawn, where that may be more than once."""
    bytes_down: int
    bytes_up: int
    """Beside the upload that is taken in: answers to surveys, and an upload that was lost."""


@dataclass(slots=True, eq=False)
class Landed:
    """A job whose upload has arrived, and whose claims the gate has accepted."""

    event: Arrived
    sent: Sent
    order: Order
    """As it was done."""
    trip: Trip


class AtWork(Stateful):
    """The jobs that are out, by client; a client has one at most."""

    saved = ("sent",)

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        self.versions: dict[int, int] = {}
        """The version that each client started from."""
        self.held: dict[int, int] = {}
        """How many jobs started from each version."""

    def __len__(self) -> int:
        return len(self.sent)

    def begin(self, jobs: Iterable[Sent]) -> None:
        """They are on their way."""
        for job in jobs:
            client, version = job.order.client, job.order.version
            assert client not in self.sent, f"client {client} is at work already"
            self.sent[client] = job
            self.versions[client] = version
            self.held[version] = self.held.get(version, 0) + 1

    def find(self, client: int, job: int) -> Sent | None:
        """The client's job, if it is the one of that number."""
        sent = self.sent.get(client)
        return sent if sent is not None and sent.order.job == job else None

    def end(self, client: int, job: int) -> Sent | None:
        """The client's job is over, if it is the one of that number."""
        sent = self.find(client, job)
        if sent is not None:
            del self.sent[client]
            version = self.versions.pop(client)
            self.held[version] -= 1
            if not self.held[version]:
                del self.held[version]
        return sent

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        jobs: dict[int, Sent] = state["sent"]
        self.__init__()  # type: ignore[misc]
        self.begin(jobs.values())
