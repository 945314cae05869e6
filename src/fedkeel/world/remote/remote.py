"""The real world: the server's commands as messages to nodes, and their answers as events, on the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.errors import AbsentError, InputError, by_reason
from fedkeel.methods.client import ClientRule
from fedkeel.methods.server import Answers
from fedkeel.server import events as ev
from fedkeel.server.core import Core
from fedkeel.server.stateful import Stateful
from fedkeel.server.trips import Times
from fedkeel.wire.orders import Order
from fedkeel.world.remote.answers import LOST, JobAnswers
from fedkeel.world.remote.attendance import Attendance
from fedkeel.world.remote.expected import MOST_HEADER, ObjectionError, Reader, joined_answers
from fedkeel.world.remote.jobs import Job, Jobs
from fedkeel.world.remote.limits import Limits
from fedkeel.world.remote.mail import Mail
from fedkeel.world.remote.message import Message
from fedkeel.world.remote.packer import Packer
from fedkeel.world.remote.roster import Roster
from fedkeel.world.remote.transport import Transport
from fedkeel.world.remote.wakes import Wakes

GONE = "its node has left"
RESTARTED = "server restarted"
"""The reason for giving up jobs that were out when the server ended."""


class Remote(Stateful):
    """Carries out the server's commands on nodes behind a transport."""

    saved = ("_before",)
    parts = ("_jobs", "packer", "mail", "_wakes", "attendance")

    def __init__(
        self,
        core: Core,
        transport: Transport,
        roster: Roster,
        reader: Reader,
        limits: Limits,
        samples: NDArray[np.int64],
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        """`samples` [N] are filled in as sites join. `clock` has the seconds of the machine."""
        self._core, self._transport, self._roster, self._reader, self._limits = core, transport, roster, reader, limits
        self._samples, self._clock, self._sleep = samples, clock, sleep
        self._before = 0.0
        """Seconds of the run in earlier processes."""
        self._started = clock()
        self._jobs = Jobs(limits)
        rule = core.model.client_rule
        self.packer = Packer(roster, rule, core.model.layout)
        self._wakes = Wakes()
        self.attendance = Attendance()
        self._lost: list[ev.Lost] = []
        self._hoped = 0.0
        """When a node was there whose last job had not failed."""
        self._warned = False
        """Whether somebody was told that there is none."""
        self.mail = Mail(transport, roster, limits, lambda: self.now, sleep)
        self._answers = JobAnswers(
            self._jobs,
            roster,
            reader,
            self.mail,
            self.packer,
            limits,
            now=lambda: self.now,
            asks=type(rule).asks_after is not ClientRule.asks_after,
        )
        self._commands: dict[type, Callable[[Any], list[ev.Event]]] = {
            ev.WakeMe: self._wake,
            ev.Survey: self._survey,
            ev.Send: self._send,
            ev.Answer: self._answer,
            ev.Interrupt: self._interrupt,
            ev.Cancel: self._cancel,
        }

    @property
    def now(self) -> float:
        """Seconds since the run began, without those between a stop and the resumption."""
        return self._before + self._clock() - self._started

    def begin_clock(self) -> None:
        """The run begins now."""
        self._started = self._clock()
        self._hoped = self.now
        self.attendance.see(self._present, self.now)

    # Checkpoints.

    def snapshot(self) -> dict[str, Any]:
        """Times, what was sent, and the dispatches that are due."""
        return {**super().snapshot(), "_before": self.now}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there; jobs that were out are lost."""
        super().restore(state)
        self.begin_clock()
        now = self.now
        for sent in self._core.at_work.sent.values():
            order = sent.order
            self._lost.append(ev.Lost(now, order.client, order.job, RESTARTED, Times(now, now, now, now, None, None)))

    # Events.

    def events(self, limit: float) -> Iterator[ev.Event]:
        """What happens until then; commands between two events may lead to more."""
        while self._lost:
            yield self._lost.pop(0)
        while self.now <= limit:
            idle = True
            for event in self._happened():
                idle = False
                yield event
            if idle:
                self._check_hope()
                self._sleep(self._limits.poll)

    def _check_hope(self) -> None:
        """A run does not go on for ever if no node is there, or if all jobs fail; jobs that are out are waited for."""
        present, problems = self._present, self._jobs.problems
        if present - problems.keys():
            self._hoped, self._warned = self.now, False
            return
        away, sites = self._limits.away, self._roster.sites
        why = by_reason({sites[client]: problems[client] for client in sorted(present)})
        if present and not self._warned:
            self._roster.tell(f"no site can do its job ({why}); they are asked again for {away:g} seconds")
            self._warned = True
        end = self._hoped + away
        if self.now > end and all(job.dispatched > end for job in self._jobs.out.values()):
            raise AbsentError(
                f"no site could do its job for {away:g} seconds ({why}); mend that, then resume the run"
                if present
                else f"no site has been there for {away:g} seconds; start their nodes, then resume the run"
            )

    def carry_out(self, command: ev.Command) -> list[ev.Event]:
        """Do what the server asks; returns the events that this causes at once."""
        return self._commands[type(command)](command)

    def _happened(self) -> Iterator[ev.Event]:
        """Answers first, then jobs that are lost, then dispatches."""
        self._fetch()
        while self.mail.backlog:
            event = self._answers.event(*self.mail.backlog.popleft())
            if event is not None:
                self._wakes.change(self.now)
                yield event
        for client, job in [*self._jobs.out.items()]:
            if self._jobs.out.get(client) is job and self.now > min(job.until, job.absent_until):
                self._wakes.change(self.now)
                why = job.why if self.now > job.until else f"failed: {job.error or GONE}"[:300]
                yield self._answers.give_up(client, why)
        self._jobs.forget_strays(self.now)
        self._push_waiting()
        while self._wakes.take(self.now, self._able(), bool(self._jobs.out)):
            yield ev.Wake(self.now, self._free())

    def _fetch(self) -> None:
        """Get what came."""
        self.mail.fetch()
        self._learn()

    def taken_in(self, client: int) -> None:
        """The server has taken in what a client sent."""
        self._jobs.taken_in(client)

    def put_aside(self, client: int, why: str) -> None:
        """The server has refused what a client sent: others come first for a while."""
        self._jobs.put_aside(client, self.now, why)

    def wait(self) -> None:
        """Let a moment pass."""
        self._sleep(self._limits.poll)
        self._fetch()

    def _learn(self) -> None:
        """How many samples the sites have that joined, and who is there."""
        known = self._roster.samples
        np.copyto(self._samples, known, where=known > 0)
        self.attendance.see(self._present, self.now)

    # Dispatches.

    def _free(self) -> NDArray[np.bool_] | None:
        """Which clients can be given a job; None if all can."""
        free = self._able()
        if len(free) == len(self._samples):
            return None
        mask = np.zeros(len(self._samples), dtype=np.bool_)
        mask[[*free]] = True
        return mask

    def _able(self) -> frozenset[int]:
        return self._present - self._jobs.engaged(self.now, strays=not self._transport.interrupts)

    @property
    def _present(self) -> frozenset[int]:
        return frozenset(filter(self._has, range(len(self._samples))))

    def _has(self, client: int) -> bool:
        return self._roster.node(client) is not None

    def _wake(self, command: ev.WakeMe) -> list[ev.Event]:
        self._wakes.add(command, self.now, self._able())
        return []

    def _send(self, command: ev.Send) -> list[ev.Event]:
        now = self.now
        for row, order in enumerate(command.orders):
            limit = self._jobs.limit(order.client)
            early = command.within is not None and command.within < limit
            until, why = (now + (command.within or 0.0), ev.TOO_LATE) if early else (now + limit, LOST)
            upload = int(command.up[row])
            pack, void = partial(self.packer.order, "train", order), now + max(limit, until - now)
            self._jobs.out[order.client] = Job(order, now, until, why, pack, upload, void)
            self._expect(order)
        self._push_waiting()
        return []

    def _expect(self, order: Order) -> None:
        """Let the transport take the answer to an order."""
        most, limit = self._reader.most(order), self._limits.most
        if limit is not None and most - MOST_HEADER > limit:
            raise InputError(
                f"max_upload_mb must be at least {(most - MOST_HEADER) / 1e6:.3g} for this model and method; got "
                f"{limit / 1e6:g}; change it in deploy.yaml"
            )
        if limit is None and self._transport.most is not None:
            self._transport.most = max(most, self._transport.most)

    def _push_waiting(self) -> None:
        """Send what could not be sent before."""
        for client, job in self._jobs.out.items():
            if job.message is None and not self._has(client):
                job.absent_until = min(job.absent_until, self.now + self._limits.absent)
            elif job.message is None:
                job.absent_until = inf
            if job.message is None and self._has(client) and self.now >= job.not_before:
                job.message = self.mail.send(client, job.pack(), job.void - self.now)
                if job.message is None:
                    return

    # Fresh models, interrupts, ends.

    def _answer(self, command: ev.Answer) -> list[ev.Event]:
        job = self._jobs.out.get(command.client)
        if job is None:
            return []
        fresh = command.fresh
        facts = {**self._roster.whose, "job": job.order.job, "newer": fresh is not None}
        tensors: dict[str, Tensor] = {}
        if fresh is None:
            job.resumed = self.now
        else:
            job.fresh, job.merged = fresh, self.now
            facts["version"] = fresh.version
            tensors = self.packer.model(fresh.w, fresh.buffers)
        job.pack, job.message = Message("fresh", facts, tensors).pack, None
        self._push_waiting()
        return []

    def _interrupt(self, command: ev.Interrupt) -> list[ev.Event]:
        for client in command.clients:
            if client in self._jobs.out:
                self.mail.post("interrupt", client, self._jobs.out[client].order.job)
        return []

    def _cancel(self, command: ev.Cancel) -> list[ev.Event]:
        out = [client for client in command.clients if client in self._jobs.out]
        events: list[ev.Event] = [self._answers.give_up(client, command.why) for client in out]
        before = [lost for lost in self._lost if lost.client in command.clients]
        self._lost = [lost for lost in self._lost if lost not in before]
        return [*events, *before]

    def give_up(self) -> dict[int, Times]:
        """The run is over: the times of the jobs that are still out, by client."""
        now, trips = self.now, {}
        for client in [*self._jobs.out]:
            trips[client] = self._jobs.out[client].trip(now)
            self._answers.give_up(client, ev.NOT_NEEDED)
        self._transport.forget([*self._jobs.strays])
        return trips

    # Questions to many clients at once.

    def _survey(self, command: ev.Survey) -> list[ev.Event]:
        orders = command.orders.but(
            received=[{**known, **more} for known, more in zip(command.orders.received, command.told, strict=True)]
        )
        packs = {order.client: partial(self.packer.order, "survey", order) for order in orders}
        asked = [replace(order, survey=True) for order in orders]
        for order in asked:
            self._expect(order)
        answers = self.ask(packs, max(map(self._reader.most, asked)))
        read, lost = [], list[int]()
        for order in orders:
            try:
                read.append(self._reader.answer(order, answers.get(order.client)))
            except ObjectionError as error:
                self._roster.tell(f"{self._roster.sites[order.client]} is left out of a survey: {error}")
                self._jobs.put_aside(order.client, self.now, self.mail.problems.get(order.client, str(error)))
                lost.append(order.client)
        if lost:
            return [ev.Unanswered(self.now, lost)]
        together, epochs = joined_answers(read), torch.from_numpy(orders.epochs[:, None].copy())
        return [ev.Answered(self.now, Answers(together.messages, together.sums, epochs))]

    def ask(self, packs: Mapping[int, Callable[[], bytes]], most: int) -> dict[int, Message]:
        """The answers of clients to a message each; who does not answer in time is left out."""
        seconds = {client: self._jobs.limit(client) for client in packs}
        answers = self.mail.ask(packs, seconds, most)
        self._learn()
        for client, answer in answers.items():
            self.packer.heard(client, answer)
        return answers
