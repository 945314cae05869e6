"""The simulated world: a fleet on a virtual clock, whose jobs are trained when their results are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.errors import FedkeelError
from fedkeel.local.settings import LocalSettings
from fedkeel.local.work import epochs_in, seen, survey_samples, units_an_epoch
from fedkeel.methods.client import ClientRule
from fedkeel.methods.types import Message
from fedkeel.server import events as ev
from fedkeel.server.core import Core
from fedkeel.server.stateful import Stateful
from fedkeel.wire.many import Column, Orders
from fedkeel.wire.orders import Order, Same, Trained
from fedkeel.world.desk import Desk
from fedkeel.world.faults import HANG, LEAVE, LOST, OLD, TWICE, FaultSettings, damaged
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.flights import BEGINS, LEFT, Begin, Flight, Request, Stray, What
from fedkeel.world.inflight import Flights
from fedkeel.world.together import Departure


class Simulated(Stateful):
    """Carries out the server's commands and reports what happens, in the order of the virtual clock."""

    saved = ("first", "_awaited", "_before")
    parts = ("flights", "desk")

    def __init__(
        self,
        core: Core,
        desk: Desk,
        fleet: Fleet,
        samples: NDArray[np.int64],
        faults: FaultSettings,
        local: LocalSettings,
        seed: int,
        first: Message,
    ) -> None:
        """`samples` [N] are all clients'; `first` is what each keeps before its first job."""
        self._core, self.desk, self._samples, self._faults, self._local = core, desk, samples, faults, local
        self._faulty = any(faults.chances)
        self._seed, self.first = seed, first
        self._rule: ClientRule = core.model.client_rule
        self.flights = Flights(fleet)
        self._awaited: list[float] = []
        """When dispatches are planned because a device comes on."""
        self._before: dict[int, int] = {}
        """Each client's last job, where devices may send that again."""
        self._surveys = 0
        self._answer_bytes: NDArray[np.int64] | int = 0
        """Bytes of the answers to surveys before the next jobs."""
        self._asked = 0
        self._whole: tuple[int, Tensor] | None = None
        """Epochs and learning rates that the last jobs were asked for, where the server looks ahead."""
        self._fitted: dict[str, Any] = {}
        """Columns of orders that were asked before their jobs are sent."""
        self._commands: dict[type, Callable[[Any], list[ev.Event]]] = {
            ev.WakeMe: self._wake,
            ev.Survey: self._survey,
            ev.Send: self._send,
            ev.Answer: self._answer,
            ev.Interrupt: self._interrupt,
            ev.Cancel: self._cancel,
            ev.Collect: self._collect,
        }

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.flights.now

    def events(self, limit: float) -> Iterator[ev.Event]:
        """The events up to `limit`, one after the other; commands between two of them may lead to more."""
        for what in self.flights.queue.until(limit):
            told = self._told(what, limit)
            if told is not None:
                yield told

    def carry_out(self, command: ev.Command) -> list[ev.Event]:
        """Do what the server asks; returns the events that this causes at once."""
        return self._commands[type(command)](command)

    def _told(self, what: What, limit: float) -> ev.Event | None:
        """The event that the server gets for what happens now, if any."""
        if isinstance(what, Begin):
            return ev.Wake(self.now, self.flights.free())
        if isinstance(what, Stray):
            return self._come_back(what)
        if self.flights.begins_landing(what):
            return self.flights.land_together(self._core.patience, limit)
        flight = self.flights.find(what)
        if flight is None:  # it was planned differently since
            return None
        if isinstance(what, Request):
            return ev.Asked(self.now, flight.order.client, flight.order.job)
        return self._lose(flight, flight.why) if flight.lost else self._land(flight)

    # Dispatches.

    def _wake(self, command: ev.WakeMe) -> list[ev.Event]:
        queue, now, tick = self.flights.queue, self.now, command.tick
        until = now
        if command.when is ev.When.CHANGE:
            until = queue.heap[0][0]
        elif command.when is ev.When.DEVICE:
            until = self.flights.next_on(self._samples)
            if until == inf:
                self._check_alive()
                return []
            if not tick and (until <= now or until in self._awaited):
                return []
            self._awaited = [*(time for time in self._awaited if time > now), until]
        queue.schedule(now + tick * max(1, ceil((until - now) / tick - 1e-9)) if tick else until, (BEGINS,), Begin())
        return []

    def _check_alive(self) -> None:
        if not self.flights.by_client and self.flights.together is None:
            raise FedkeelError(
                f"the server starves: all devices that have data had left for good by {self.now:g} virtual seconds; "
                "choose a smaller faults.leave"
            )

    def _fit(self, orders: Orders) -> Orders:
        """Orders with what the devices add: what they keep, and how many epochs they get done."""
        if not self._surveys:  # otherwise a survey has done so before
            kept, first, self._asked = self.desk.kept, self.first, orders.epochs.item(0)
            clients, lr = orders.client, orders.lr[0]
            done = self.flights.fleet.epochs_done(self._asked, clients, self._seed, orders.wave.item(0))
            states = [kept.get(client, first) for client in clients.tolist()] if kept else Same(first, len(orders))
            self._fitted = {"kept": states} if kept or first else {}
            if done.min() < self._asked:
                rates = {epochs: lr[:epochs] if epochs < self._asked else lr for epochs in set(done.tolist())}
                self._fitted |= {"epochs": done, "lr": [rates[epochs] for epochs in done.tolist()]}
        return orders.but(**self._fitted) if self._fitted else orders

    def _survey(self, command: ev.Survey) -> list[ev.Event]:
        orders = self._fit(command.orders)
        self._surveys += 1
        self._answer_bytes = self._answer_bytes + command.nbytes
        return [ev.Answered(self.now, self.desk.ask(orders, command.told, self._rule))]

    def _send(self, command: ev.Send) -> list[ev.Event]:
        jobs = self._departure(command, self._choose_slots(self._fit(command.orders)))
        self._surveys = self._asked = 0
        self._answer_bytes, self._fitted = 0, {}
        if self._core.model.rule.looks_ahead and not self._core.pace.at_once:
            self._whole = command.orders.epochs.item(0), command.orders.lr[0]
        if self._core.pace.at_once:
            for flight in jobs.flights():
                self.flights.launch(flight)
                if not flight.asks:
                    self.desk.add(flight)
            return []
        alone = jobs.alone  # a round is trained as a whole
        if alone.any():
            for flight in jobs.pick(np.flatnonzero(alone)).flights():
                self.flights.launch(flight)
            jobs = jobs.pick(np.flatnonzero(~alone))
        if len(jobs.orders):
            self.flights.launch_together(jobs)
        return []

    def _choose_slots(self, orders: Orders) -> Orders:
        """Clients decide when they will ask for a fresh model."""
        if type(self._rule).asks_after is ClientRule.asks_after:
            return orders
        drawn = streams.uniform(streams.keys(self._seed, "slot", orders.wave.item(0), orders.client), 2).tolist()
        slots = [
            self._rule.asks_after(kept, received, self._asked, (one, two))
            for kept, received, (one, two) in zip(orders.kept, orders.received, drawn, strict=True)
        ]
        return orders.but(slot=np.where(np.array(slots) < orders.epochs, slots, 0))

    def _survey_seconds(self, clients: NDArray[np.int64]) -> float:
        """The delay of a wave: what surveys took its slowest client. No client runs out of time in a survey."""
        survey, fleet, samples = self._rule.survey, self.flights.fleet, self._samples[clients]
        if not self._surveys or survey is None:
            return 0.0
        work = survey_samples(samples, survey, self._local)
        answers = fleet.upload_seconds(clients, self._answer_bytes)
        return float((self._surveys * fleet.train_seconds(clients, work) + answers).max())

    def _departure(self, command: ev.Send, orders: Orders) -> Departure:
        """The jobs with their times; surveys delay their start."""
        fleet, faults, now, seed = self.flights.fleet, self._faults, self.now, self._seed
        clients, wave, count = orders.client, orders.wave.item(0), len(orders)
        began = now + (fleet.download_seconds(clients, command.down) + self._survey_seconds(clients))
        samples, local = self._samples[clients], self._local
        seconds = fleet.train_seconds(clients, seen(samples, self._asked, local))  # also where clients run out of time
        an_epoch = units_an_epoch(samples, local)
        pause, fails = np.zeros(count), np.full(count, now + (command.within or np.inf))
        fault: Column[str] = Same("", count)
        why: Column[str] = Same(ev.TOO_LATE, count)
        ends: dict[str, NDArray[np.float64]] = {}
        if self._faulty:
            fault, shares = faults.draw(clients, seed, wave)
            pause = faults.hang_seconds * np.array([each == HANG for each in fault])
            ends[LEFT] = np.where([each == LEAVE for each in fault], began + seconds * shares, np.nan)
        if fleet.fails:
            ends["dropped out"] = began + seconds * fleet.fails_at(clients, seed, wave)
        if not fleet.always_on:
            ends["went offline"] = fleet.off_at(clients, now)
        if ends:
            fails = np.fmin.reduce([*ends.values(), fails])
            why = np.select([times == fails for times in ends.values()], [*ends], ev.TOO_LATE).tolist()
        return Departure(
            orders=orders,
            dispatched=now,
            began=began,
            epoch_seconds=seconds / epochs_in(self._asked, an_epoch),
            finished=began + seconds + pause,
            upload_seconds=fleet.upload_seconds(clients, command.up),
            fails=fails,
            why=why,
            upload_bytes=command.up,
            fault=fault,
            pause=pause,
            before=self._last(orders),
            an_epoch=an_epoch,
        )

    def _last(self, orders: Orders) -> Column[int]:
        """Each client's previous job, where devices may send that again."""
        if not self._faults.old_job:
            return Same(0, len(orders))
        clients = orders.numbers("client")
        before = [self._before.get(client, 0) for client in clients]
        self._before.update(zip(clients, orders.numbers("job"), strict=True))
        return before

    # Fresh models, interrupts.

    def _answer(self, command: ev.Answer) -> list[ev.Event]:
        flight = self.flights.by_client[command.client]
        if command.fresh is None:
            flight.order = replace(flight.order, slot=0)
        else:
            flight.order = replace(flight.order, fresh=command.fresh)
        seconds = self.flights.fleet.download_seconds(np.array([command.client]), command.nbytes)
        self.flights.go_on(flight, float(seconds[0]))
        self.flights.plan(flight)
        self.desk.add(flight)
        return []

    def _interrupt(self, command: ev.Interrupt) -> list[ev.Event]:
        for client in command.clients:
            flight = self.flights.by_client[client]
            if flight.finished > self.now and self.flights.interrupt(flight) and not flight.asks:
                self.desk.add(flight)
        return []

    # Ends.

    def _cancel(self, command: ev.Cancel) -> list[ev.Event]:
        self.flights.separate()
        return [self._lose(self.flights.by_client[client], command.why) for client in command.clients]

    def _collect(self, command: ev.Collect) -> list[ev.Event]:
        orders = command.orders
        trained = self.desk.train(orders) if command.again else self.desk.collect(orders, self._core.ahead)
        if self._whole is not None:
            trained = self.desk.look_ahead(orders, trained, *self._whole)
        return [ev.Delivered(self.now, trained)]

    def _lose(self, flight: Flight, why: str) -> ev.Lost:
        self.desk.drop(flight)
        self.flights.lose(flight, why)
        return ev.Lost(self.now, flight.order.client, flight.order.job, why, flight)

    def _land(self, flight: Flight) -> ev.Event:
        """A job ends with an upload, which faults may lose, falsify or send twice."""
        order, fault, core = flight.order, flight.fault, self._core
        self.flights.land(flight)
        if not fault:
            return ev.Arrived(self.now, order.client, order.job, order.version, flight.upload_bytes, order, flight)
        if fault == LOST:
            self.desk.collect(Orders.of([order]), core.ahead)
            more = flight.upload_bytes, self._work(order)
            return ev.Lost(self.now, order.client, order.job, "upload lost", flight, *more)
        job = flight.before if fault == OLD and flight.before else order.job
        version = core.model.version + 1 if fault == "future" else order.version
        upload: Trained | None = None
        if job != order.job or fault in self._faults.corruptions:
            upload = damaged(self.desk.collect(Orders.of([order]), core.ahead), fault, order.start, core.gate.max_norm)
        if fault == TWICE:
            self.flights.stray(flight, self.now + self._faults.again_seconds)
        return ev.Arrived(self.now, order.client, job, version, flight.upload_bytes, order, flight, upload)

    def _come_back(self, stray: Stray) -> ev.Arrived:
        """An upload comes that the server does not wait for; what its device changed in its own state stays changed."""
        flight = self.flights.come_back(stray)
        if flight is not None:
            self.desk.collect(Orders.of([flight.order]), 0)
        work = 0 if flight is None else self._work(flight.order)
        return ev.Arrived(self.now, stray.client, stray.job, stray.version, stray.bytes_up, None, work=work)

    def _work(self, order: Order) -> int:
        return int(seen(self._samples[[order.client]], order.epochs, self._local)[0])
