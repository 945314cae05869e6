"""What a world tells the server (events), and what the server asks of it (commands).

A world carries out commands and yields events. It may be the simulated one, real machines, or a few dozen lines in a
test. Every event has the world's time as a plain number; the server never looks at a clock. A world answers `Survey`,
`Cancel` and `Collect` before it reports anything else. Events about a job or a run that is over change nothing.

Orders come as `Orders`: one object for all jobs of a dispatch. A world may also report many uploads with one event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.methods.job import Fresh
from fedkeel.methods.server import Answers
from fedkeel.methods.types import Message
from fedkeel.record.rows import Arrivals, Refused, Unfinished
from fedkeel.server.trips import Trip, Trips
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Order, Trained

TOO_LATE, NOT_NEEDED = "too late", "not needed"
"""The server's reasons for giving up a job."""


# Events.


@dataclass(frozen=True, slots=True)
class Wake:
    """A dispatch is due, as the server asked for."""

    time: float
    free: NDArray[np.bool_] | None = None
    """[N], which clients can be given a job now; None: all that are not at work."""


@dataclass(frozen=True, slots=True)
class Answered:
    """All clients have answered a survey."""

    time: float
    answers: Answers


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Some clients will not answer a survey; the server asks the others again."""

    time: float
    clients: Sequence[int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A client asks for a fresh model in the middle of its job."""

    time: float
    client: int
    job: int


@dataclass(slots=True)  # not frozen, which takes three times as long to make: there are thousands
class Arrived:
    """An upload has arrived, or its header has."""

    time: float
    client: int
    job: int
    """The job that it claims to belong to."""
    version: int
    """The version of the model that it claims to have started from."""
    nbytes: int
    order: Order | None
    """The client's job that ends with it, as it was done. None: the job that it claims, as it was sent; if the claim is
    refused, that job is not over."""
    trip: Trip | None = None
    """The trip of that job; only an upload that the server does not wait for has none."""
    upload: Trained | None = None
    """The content (m = 1), if it came with the header; otherwise the server collects it when it needs it. Either all
    uploads of a run come with their content, or none does."""
    work: int = 0
    """Samples of the mini-batches behind an upload that the server does not wait for."""
    objection: str = ""
    """What the world found wrong with the content, if it is no upload of this run at all."""


@dataclass(slots=True)
class Uploads:
    """Headers of uploads, in columns [m], each of which is what the server expects of its client."""

    orders: Orders
    """The jobs as they were done; all are of one dispatch."""
    trips: Trips
    nbytes: list[int]


@dataclass(slots=True)
class ArrivedTogether:
    """Some uploads came one after the other, and nothing else happened since the first of them.

    There are at most `Core.patience` of them, because after so many the server may give commands.
    """

    time: float
    """When the last one arrived."""
    uploads: Uploads
    rows: NDArray[np.int64]
    """Which of these arrived, in the order of their arrival."""

    def one_by_one(self) -> list[Arrived]:
        """The same as single events."""
        orders, trips, nbytes = self.uploads.orders, self.uploads.trips, self.uploads.nbytes
        some = ((orders[row], trips[row], nbytes[row]) for row in self.rows.tolist())
        return [Arrived(trip.arrives, o.client, o.job, o.version, size, o, trip) for o, trip, size in some]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the server collected."""

    time: float
    upload: Trained
    """One row per order, in their order."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A job is over without a result."""

    time: float
    client: int
    job: int
    why: str
    trip: Trip
    nbytes: int = 0
    """Bytes of its upload, where that was sent in vain."""
    work: int = 0
    """Samples of all mini-batches, where it was trained in vain."""


@dataclass(frozen=True, slots=True)
class TimeUp:
    """The run ends now."""

    time: float


Event = Wake | Answered | Unanswered | Asked | Arrived | ArrivedTogether | Delivered | Lost | TimeUp


# Commands.


class When(Enum):
    """What a server waits for before its next dispatch."""

    NOW = "now"
    CHANGE = "whatever happens next"
    DEVICE = "somebody comes on who could be given a job"


@dataclass(frozen=True, slots=True)
class WakeMe:
    """Ask for a dispatch (`Wake`).

    Without a tick, it comes at that moment. With one, it comes at the first multiple of `tick` seconds from now that is
    not before that moment, but never now.
    """

    when: When
    tick: float = 0.0


@dataclass(frozen=True, slots=True)
class Survey:
    """Ask clients something before they train; answered with `Answered`, for all of them, or with `Unanswered`."""

    orders: Orders
    told: Sequence[Message]
    """What each is told."""
    nbytes: NDArray[np.int64]
    """[m], bytes of the answers."""


@dataclass(frozen=True, slots=True)
class Send:
    """Give jobs to clients. A world fills in what only the client knows: its kept state and the epochs it gets done."""

    orders: Orders
    down: NDArray[np.int64]
    """[m], bytes to each client, including those of earlier surveys."""
    up: NDArray[np.int64]
    """[m], bytes of the uploads."""
    within: float | None
    """Seconds after which a job that is not back is lost, as too late."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Give a client that asked a fresh model, or tell it to go on without."""

    client: int
    fresh: Fresh[int] | None = None
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask clients for the model of their finished epochs, or of their first if none is finished yet."""

    clients: Sequence[int]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give up these clients' jobs; each is answered with `Lost`."""

    clients: Sequence[int]
    why: str


@dataclass(frozen=True, slots=True)
class Collect:
    """Hand over the results of these jobs as one upload; answered with `Delivered`."""

    orders: Orders
    again: bool = False
    """Whether it was collected before with others, and the sums over clients are now wanted without those."""


@dataclass(frozen=True)
class RoundOver:
    """A round is over; always the last of the commands."""

    round: int
    virtual_seconds: float
    train_loss: float | None
    arrivals: Arrivals
    unfinished: list[Unfinished]
    """Jobs that will not arrive."""
    refused: list[Refused]
    """Uploads that the gate refused."""
    report: Mapping[str, Any]
    """What the server rule reports about the round (`ServerRule.report`)."""
    models: Sequence[tuple[Tensor, Tensor]]
    """(Weights, buffers) as they came back, where they are to be tested."""
    evaluate: bool
    """Whether the model is to be tested now."""


Command = WakeMe | Survey | Send | Answer | Interrupt | Cancel | Collect | RoundOver
