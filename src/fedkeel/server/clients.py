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
    """In surveys before it, and of an upload that was lost."""
    upload_bytes: int


@dataclass(slots=True, eq=False)
class Landed:
    """A job whose upload is here and is what it should be, as far as shows from outside."""

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

    def end(self, client: int) -> Sent:
        """The client's job is over."""
        version = self.versions.pop(client)
        self.held[version] -= 1
        if not self.held[version]:
            del self.held[version]
        return self.sent.pop(client)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        jobs: dict[int, Sent] = state["sent"]
        self.__init__()  # type: ignore[misc]
        self.begin(jobs.values())
