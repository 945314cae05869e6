"""What clients answer to their jobs, as events for the server."""

from __future__ import annotations

from collections.abc import Callable

from fedkeel.errors import label, words
from fedkeel.server import events as ev
from fedkeel.world.remote.envelope import FAILED, EnvelopeError
from fedkeel.world.remote.expected import ObjectionError, Reader
from fedkeel.world.remote.jobs import Job, Jobs, seconds
from fedkeel.world.remote.jobs import claims as claims_of
from fedkeel.world.remote.limits import Limits
from fedkeel.world.remote.mail import Mail
from fedkeel.world.remote.message import Message, told_why
from fedkeel.world.remote.packer import Packer
from fedkeel.world.remote.roster import Roster
from fedkeel.world.remote.transport import Reply

LOST = "no answer"
"""The reason for giving up a job that took too long, beside those of the server."""


class JobAnswers:
    """Takes jobs off the list as they are answered, refused or given up."""

    def __init__(
        self,
        jobs: Jobs,
        roster: Roster,
        reader: Reader,
        mail: Mail,
        packer: Packer,
        limits: Limits,
        now: Callable[[], float],
        asks: bool,
    ) -> None:
        """`asks` says whether the method's clients ask for fresh models."""
        self._jobs, self._roster, self._reader, self._mail, self._packer = jobs, roster, reader, mail, packer
        self._limits, self._now, self._asks = limits, now, asks

    def event(self, came: float, reply: Reply) -> ev.Event | None:
        """The event that the server gets for an answer, if any."""
        job = self._jobs.by_message(reply.message)
        if job is None:
            return self._stray(came, reply)
        if reply.body is None:
            if reply.too_large:
                return self._refuse(came, job, reply.error)
            return self._failed(job, reply.error)
        try:
            message = self._mail.opened(reply.body, self._reader.most(job.order))
        except EnvelopeError as error:
            return self._refuse(came, job, words(error))
        job.busy += seconds(message)
        if message.kind == FAILED:
            self._roster.failed(job.order.client, message)
            return self._failed(job, told_why(message), final=bool(message.facts.get("gone")))
        if message.facts.get("run") != self._roster.run:
            return self._refuse(came, job, "it belongs to another run")
        if message.kind == "ask" and self._asks and job.asked is None:
            job.asked = came
            return ev.Asked(came, job.order.client, job.order.job)
        if message.kind != "done":
            return self._refuse(came, job, f"it is a {label(message.kind)}, which was not expected")
        return self._arrive(came, job, message)

    def _arrive(self, came: float, job: Job, message: Message) -> ev.Event:
        order = job.order
        self._packer.heard(order.client, message)
        claims = claims_of(message)
        if claims is None:
            return self._refuse(came, job, "it does not say which job it belongs to")
        if claims[0] != order.job:  # the node has nothing else to say about its job
            self._jobs.put_aside(order.client, self._now(), "it answers for another job")
            return self._over(came, job, *claims)
        try:
            done, upload = self._reader.upload(order, job.fresh, message)
        except ObjectionError as error:
            return self._refuse(came, job, str(error))
        self._jobs.done(order.client, came)
        if claims[1] == order.version:
            self._packer.after[order.client] = order.job
        if not done.slot and job.merged is not None:
            job.merged, job.resumed = None, job.merged
        trip = job.trip(came)
        return ev.Arrived(came, order.client, *claims, job.upload_bytes, done, trip, upload)

    def _over(self, came: float, job: Job, number: int, version: int, objection: str = "") -> ev.Arrived:
        """A job ends with an upload that the server will refuse."""
        order = job.order
        del self._jobs.out[order.client]
        trip = job.trip(came)
        return ev.Arrived(
            came, order.client, number, version, job.upload_bytes, order, trip, objection=objection or "wrong job"
        )

    def _refuse(self, came: float, job: Job, why: str) -> ev.Arrived:
        self._mail.traffic.failed += 1
        self._jobs.put_aside(job.order.client, self._now(), why)
        return self._over(came, job, job.order.job, job.order.version, why)

    def _stray(self, came: float, reply: Reply) -> ev.Event | None:
        """An answer that the server does not wait for."""
        given_up = self._jobs.strays.pop(reply.message, None)
        if reply.body is None:
            return None
        try:
            message = Message.unpack(reply.body)
        except EnvelopeError:
            return None
        client = next((m.client for m in self._roster.members.values() if m.node == reply.node), None)
        claims = claims_of(message)
        ours = message.facts.get("run") == self._roster.run
        if message.kind != "done" or client is None or claims is None or not ours:
            return None
        if client in self._jobs.out and self._jobs.out[client].order.job == claims[0]:
            return None  # the message of this job that is out will be answered, too
        nbytes = given_up[0].upload_bytes if given_up else len(reply.body)
        return ev.Arrived(came, client, *claims, nbytes, None)

    def _failed(self, job: Job, why: str, final: bool = False) -> ev.Event | None:
        """Try again, or lose the job: `final` where the node has nothing more of it."""
        client = job.order.client
        job.failures += 1
        job.message, job.error = None, why
        job.not_before = self._now() + self._limits.pause(job.failures)
        if final or job.failures > self._limits.retries:
            self._jobs.put_aside(client, self._now(), why)
            return self.give_up(client, f"failed: {why}"[:300])
        self._roster.tell(f"{self._roster.sites[client]} failed ({why}); its job is sent again")
        return None

    def give_up(self, client: int, why: str) -> ev.Lost:
        """The server waits no longer for the job of a client."""
        job = self._jobs.lose(client, self._now(), slow=why == LOST)
        if why != ev.NOT_NEEDED:
            self._jobs.problems[client] = why
        if job.message is not None:
            self._mail.post("cancel", client, job.order.job)
        return ev.Lost(self._now(), client, job.order.job, why, job.trip(self._now()))
