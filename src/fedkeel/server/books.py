"""How jobs end, in the counts and in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.server.clients import Landed, Sent
from fedkeel.server.columns import arrivals
from fedkeel.server.events import Arrived, Lost
from fedkeel.server.gate import Refusal
from fedkeel.server.ledger import Ledger
from fedkeel.server.log import Log
from fedkeel.server.trips import Trip
from fedkeel.server.waves import JobSettings
from fedkeel.wire.orders import Order, Trained


class Books:
    """Counts every job's end and writes it down; the ledger and the log have the state."""

    def __init__(self, ledger: Ledger, log: Log, samples: NDArray[np.int64], settings: JobSettings) -> None:
        """`samples` [N] are all clients'."""
        self._ledger, self._log, self._samples, self._settings = ledger, log, samples, settings

    def take_in(
        self,
        landed: Landed,
        upload: Trained,
        weights: Sequence[float | None],
        version: int,
        more: Mapping[str, list[Any]],
    ) -> None:
        """Updates were taken in with these weights, by the model of that version; `more` are further columns."""
        told = arrivals(landed, self._samples, upload, weights, version, **more)
        seen = self._settings.seen(self._samples[landed.orders.client], landed.orders.epochs).tolist()
        self._log.told.extend(told)
        self._log.seen += seen
        self._ledger.bytes_up += sum(landed.nbytes)
        self._ledger.updates += len(landed)
        self._ledger.samples += sum(seen)
        if self._settings.keep_models:
            self._log.models += zip(upload.w, upload.buffers, strict=True)

    def turn_away(self, event: Arrived, sent: Sent | None, refusal: Refusal, now: float) -> None:
        """The gate refused an upload: the device has trained and sent something in vain."""
        order = event.order or (sent.order if sent else None)
        self._ledger.bytes_up += event.nbytes
        self._ledger.samples += event.work if order is None else self._work(order)
        self._ledger.turn_away(refusal.reason)
        self._log.refuse(event, refusal, sent, now)

    def lose(self, event: Lost, sent: Sent) -> None:
        """A job is over without a result."""
        self._ledger.bytes_up += event.nbytes
        self._ledger.samples += event.work
        self._ledger.lost += 1
        sent.bytes_up += event.nbytes
        self._log.write_off(sent, event.why, event.trip, event.time)

    def leave(self, jobs: Sequence[tuple[Sent, Trip]], now: float) -> None:
        """These jobs are still in flight when the run ends."""
        self._ledger.left += len(jobs)
        for sent, trip in jobs:
            self._log.write_off(sent, "in flight", trip, now)

    def _work(self, order: Order) -> int:
        """Samples that a job went through."""
        return int(self._settings.seen(self._samples[[order.client]], np.array([order.epochs]))[0])
