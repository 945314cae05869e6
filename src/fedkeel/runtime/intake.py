"""What becomes of uploads: lost on the way, refused by the gate, or taken in."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import torch
from torch import Tensor

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.local.orders import Trained
from fedkeel.methods.server import Receipt, View
from fedkeel.record.rows import Arrivals, Refused
from fedkeel.runtime.desk import Desk
from fedkeel.runtime.flights import Flight, Flights, Stray
from fedkeel.runtime.gate import Gate, Refusal
from fedkeel.runtime.ledger import Ledger
from fedkeel.runtime.records import arrivals, patch, received
from fedkeel.runtime.server import Server
from fedkeel.runtime.stateful import Stateful
from fedkeel.runtime.surveys import uploaded
from fedkeel.world.faults import LOST, OLD, TWICE


class Intake(Stateful):
    """The server's side of an upload; between rounds it remembers nothing but what was refused since."""

    saved = ("refused", "round")

    def __init__(
        self, experiment: Experiment, data: FederatedData, server: Server, flights: Flights, desk: Desk, ledger: Ledger
    ) -> None:
        self._experiment, self._data, self._server = experiment, data, server
        self._flights, self._desk, self._ledger = flights, desk, ledger
        self.gate = Gate(experiment.gate, server.layout, server.client_rule.uploads, len(data))
        self.begin(1)

    def begin(self, round: int) -> None:
        """A new round."""
        self.round = round
        self.arrived: list[Flight] = []
        """Whose uploads may be taken in."""
        self.told = Arrivals()
        """What is to be recorded of those that were received at once."""
        self.refused: list[Refused] = []
        """Uploads that the gate refused."""
        self.models: list[tuple[Tensor, Tensor]] = []
        """As they came back, where they are to be tested."""

    # At the door.

    def land(self, flight: Flight, most: int) -> bool:
        """A job ends with an upload: whether that is there, and is what it should be as far as shows from outside.

        If it has to be computed now, so have the next `most`.
        """
        order, fault = flight.order, flight.fault
        self._flights.land(flight)
        if fault == LOST:
            self._spend(flight, most)
            flight.bytes_up += flight.upload_bytes
            self._flights.write_off(flight, "upload lost")
            return False
        job = flight.before if fault == OLD and flight.before else order.job
        version = self._server.version + 1 if fault == "future" else order.version
        refusal = self.gate.claim(order.client, job, version, order.job, self._server.version)
        if refusal is not None or fault in self._experiment.faults.corruptions:
            trained = self._spend(flight, most)
            if refusal is None:
                damaged = _damaged(trained, fault, order.start, self._experiment.gate.max_norm)
                refusal = self.gate.judge([order], damaged, altered=True)[0]
            assert refusal is not None, f"an upload damaged by {fault} was let in"
            self._refuse(order.client, job, version, flight.upload_bytes, refusal, flight)
            return False
        if fault == TWICE:
            self._flights.stray(flight, self._flights.now + self._experiment.faults.again_seconds)
        self.arrived.append(flight)
        return True

    def stray(self, stray: Stray) -> None:
        """An upload that nobody waits for."""
        flight = self._flights.come_back(stray)
        if flight is not None:
            self._spend(flight, 0)
        else:
            self._ledger.bytes_up += stray.bytes_up
        expected = self._flights.by_client.get(stray.client)
        waits = None if expected is None else expected.order.job
        refusal = self.gate.claim(stray.client, stray.job, stray.version, waits, self._server.version)
        assert refusal is not None, f"job {stray.job} was let in without being in flight"
        self._refuse(stray.client, stray.job, stray.version, stray.bytes_up, refusal)

    def _spend(self, flight: Flight, most: int) -> Trained:
        """The device has trained and sent something, in vain; what it changed in its own state stays changed."""
        self._ledger.bytes_up += flight.upload_bytes
        self._ledger.samples += int(self._data.sizes[flight.order.client]) * flight.order.epochs
        return self._desk.collect([flight.order], most)

    def _refuse(
        self, client: int, job: int, version: int, bytes_up: int, refusal: Refusal, flight: Flight | None = None
    ) -> None:
        """Write it down, with the job that comes to an end with it, if one does."""
        self._ledger.turn_away(refusal.reason)
        self.refused.append(
            Refused(
                round=self.round,
                client=client,
                job=job,
                start_version=version,
                dispatched=None if flight is None else flight.dispatched,
                arrived=self._flights.now,
                reason=refusal.reason,
                detail=refusal.detail,
                bytes_up=bytes_up + (0 if flight is None else flight.bytes_up),
                bytes_down=0 if flight is None else flight.bytes_down,
            )
        )

    # Inside.

    def receive(self, flight: Flight, most: int) -> Receipt | None:
        """Take in one update at once; nothing if the gate refuses it."""
        order = flight.order
        trained = self._desk.collect([order], most)
        if self._turned_away([flight], trained):
            self.arrived.remove(flight)
            return None
        view = View(
            time=self._flights.now,
            version=self._server.version,
            round=self.round,
            client=order.client,
            start_version=order.version,
            fresh_version=order.fresh_version if flight.merged is not None else None,
            seconds=self._flights.now - flight.dispatched,
            busy=self._flights.versions,
            held=self._flights.held,
        )
        receipt = self._server.receive(flight, trained, view)
        self._ledger.refused += not receipt.accepted
        self._record(flight, trained, view, receipt)
        return receipt

    def aggregate(self) -> Arrivals:
        """The new model from what has come of a round with a barrier; nothing if the gate lets none of it in."""
        flights = sorted(self.arrived, key=lambda flight: flight.order.job)
        orders = [flight.order for flight in flights]
        trained = self._desk.collect(orders, 0)
        refused = self._turned_away(flights, trained)
        if refused:
            left, trained = self._desk.without(orders, trained, refused)
            self.arrived = flights = [flights[row] for row in left]
            if not flights:
                return Arrivals()
        version = self._server.version
        weights = self._server.aggregate(flights, trained)
        if self._experiment.evaluate_local:
            self.models = list(zip(trained.w, trained.buffers, strict=True))
        return arrivals(flights, self._data.sizes, trained, weights, self._count(flights, trained), version)

    def _turned_away(self, flights: Sequence[Flight], trained: Trained) -> list[int]:
        """The rows that the gate refuses."""
        refusals = self.gate.judge([flight.order for flight in flights], trained)
        rows = [row for row, refusal in enumerate(refusals) if refusal is not None]
        sent = uploaded(self._server.client_rule, trained) if rows else None
        for row in rows:
            refusal, order = refusals[row], flights[row].order
            assert refusal is not None
            assert sent is not None
            bytes_up = self._server.up + int(sent[row])
            self._ledger.bytes_up += bytes_up
            self._ledger.samples += int(self._data.sizes[order.client]) * order.epochs
            self._refuse(order.client, order.job, order.version, bytes_up, refusal, flights[row])
        return rows

    def _record(self, flight: Flight, trained: Trained, view: View, receipt: Receipt) -> None:
        """Write down an update that was received at once."""
        said = trained.messages if flight.merged is not None else {}
        notes = {name: float(said[name][0]) for name in self._server.client_rule.recorded if name in said}
        notes |= receipt.notes
        sent = self._count([flight], trained)
        self.told.extend(received(flight, self._data.sizes, trained, receipt, sent, view.version, notes))
        if receipt.earlier:
            patch(self.told.columns["weight"], receipt.earlier)
        if self._experiment.evaluate_local:
            self.models.append((trained.w[0], trained.buffers[0]))

    def _count(self, flights: Sequence[Flight], trained: Trained) -> list[int]:
        """Count them in; returns the bytes that each of them sent."""
        sent = self._server.up + uploaded(self._server.client_rule, trained).numpy()
        self._ledger.bytes_up += int(sent.sum())
        up: list[int] = (sent + [flight.bytes_up for flight in flights]).tolist()
        self._ledger.updates += len(flights)
        sizes = self._data.sizes
        self._ledger.samples += sum(int(sizes[f.order.client]) * f.order.epochs for f in flights)
        return up


def _damaged(trained: Trained, how: str, start: Tensor, max_norm: float | None) -> Trained:
    """What is left of an upload (`FaultSettings.corruptions`)."""
    w = trained.w.clone()
    match how:
        case "nan":
            w[:, 0] = nan
        case "infinite":
            w[:, 0] = inf
        case "huge":  # further from the start than is accepted, in every coordinate
            assert max_norm is not None
            w[:] = start + start.abs() + 10 * max_norm + 1
        case "shape":
            w = w[:, 1:]
        case "dtype":
            w = w.to(torch.float32 if w.dtype == torch.float64 else torch.float64)
    return Trained({**trained.columns, "w": w})
