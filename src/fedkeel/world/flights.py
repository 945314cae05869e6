"""A job on its way, and what may happen to it next."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fedkeel.local.work import epochs_in
from fedkeel.wire.orders import Order

LEFT = "left for good"


@dataclass(slots=True, eq=False)
class Flight:
    """A job on its way: the order and what the clock knows of it; all times are virtual seconds."""

    order: Order
    dispatched: float
    began: float
    """The model is there, and training begins."""
    epoch_seconds: float
    """Seconds of training on all samples once."""
    finished: float
    """Training ends, and the upload begins."""
    upload_seconds: float
    fails: float
    """When the device is lost if the job is not over by then."""
    why: str
    """Why it would be lost."""
    upload_bytes: int
    fault: str = ""
    """What goes wrong on purpose (`FaultSettings`)."""
    pause: float = 0.0
    """Seconds that it hangs before its upload, unreachable; they are part of `finished`."""
    before: int = 0
    """The device's previous job, where that matters."""
    an_epoch: float = 1.0
    """Units per epoch (`units_an_epoch`): its order counts these units, not epochs."""
    asked: float | None = None
    """When it asked for a fresh model."""
    merged: float | None = None
    """When it continued with that model."""
    resumed: float | None = None
    """When it continued without, as there was none newer."""
    revision: int = 0
    """How often its end was planned again; earlier plans do not count."""

    @property
    def arrives(self) -> float:
        """When the upload is there, if nothing happens."""
        return self.finished + self.upload_seconds

    @property
    def lost(self) -> bool:
        """Whether it will not arrive."""
        return self.fails < self.arrives

    @property
    def asks(self) -> bool:
        """Whether it is still going to ask for a fresh model."""
        return self.order.slot > 0 and self.asked is None

    @property
    def waited(self) -> float:
        """Seconds until it had the answer to that."""
        went_on = self.resumed if self.merged is None else self.merged
        return 0.0 if went_on is None or self.asked is None else went_on - self.asked

    @property
    def slot_time(self) -> float:
        """When it asks for a fresh model."""
        return self.began + self.seconds_of(self.order.slot)

    def seconds_of(self, units: int) -> float:
        """Seconds of training for so many epochs, or mini-batches where these are counted."""
        return float(epochs_in(units, self.an_epoch) * self.epoch_seconds)

    def done_in(self, seconds: float) -> int:
        """How many epochs or mini-batches are finished after so many seconds of training, up to rounding."""
        epochs = seconds / self.epoch_seconds + 1e-9
        return int(epochs) * ceil(self.an_epoch) + int((epochs - int(epochs)) * self.an_epoch)


@dataclass(frozen=True)
class Begin:
    """A round begins, or another dispatch is due."""


@dataclass(frozen=True)
class Planned:
    """What comes next for a job, as it was known when this was planned."""

    client: int
    job: int
    revision: int


@dataclass(frozen=True)
class Request(Planned):
    """A device asks for a fresh model."""


@dataclass(frozen=True)
class End(Planned):
    """A job arrives, or its device is lost."""


@dataclass(frozen=True)
class Stray:
    """An upload comes that belongs to no job in flight: a second copy, or a late one."""

    client: int
    job: int
    version: int
    bytes_up: int


What = Begin | Request | End | Stray
ARRIVES, ASKS, BEGINS = range(3)
"""The order at one instant: first arrivals, by client, then requests, then dispatches; so both requests and dispatches
get the newest model."""
