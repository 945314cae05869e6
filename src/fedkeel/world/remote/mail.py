"""Messages to clients and their answers: what goes out, what came, and questions to many at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedkeel.errors import FedkeelError, words
from fedkeel.server.stateful import Stateful
from fedkeel.world.remote.envelope import FAILED, EnvelopeError, over
from fedkeel.world.remote.limits import Limits
from fedkeel.world.remote.message import Message, told_why
from fedkeel.world.remote.roster import Roster
from fedkeel.world.remote.transport import Reply, Transport


@dataclass
class Traffic(Stateful):
    """What went over the wire, as it was sent."""

    saved = ("up", "down", "messages", "failed")
    up: int = 0
    down: int = 0
    messages: int = 0
    failed: int = 0
    """Answers that did not come, or made no sense."""


class Mail(Stateful):
    """Sends to clients by their nodes."""

    parts = ("traffic",)

    def __init__(
        self,
        transport: Transport,
        roster: Roster,
        limits: Limits,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """`now` has the seconds of the run."""
        self._transport, self._roster, self._limits, self._now, self._sleep = transport, roster, limits, now, sleep
        self.traffic = Traffic()
        self.backlog = deque[tuple[float, Reply]]()
        """Answers that nobody has looked at, and when they came."""
        self.problems: dict[int, str] = {}
        """By client: why its last question was not answered."""
        self._reached: float | None = None
        """When the nodes could be reached; or when that was first tried."""

    def fetch(self) -> None:
        """Get what came; the roster's own answers are dealt with at once."""
        try:
            self._roster.look()
            replies = self._transport.poll()
            self._reached = self._now()
        except ConnectionError as error:
            away = self._limits.away
            self._reached = self._now() if self._reached is None else self._reached
            if self._now() - self._reached > away:
                raise FedkeelError(
                    f"the nodes have been out of reach for {away:g} seconds ({error}); see whether the SuperLink runs, "
                    "then resume the run"
                ) from error
            return
        for reply in replies:
            self.traffic.failed += reply.body is None
            self.traffic.up += len(reply.body or b"")
            if not self._roster.take(reply):
                self.backlog.append((self._now(), reply))

    def send(self, client: int, body: bytes, seconds: float) -> str | None:
        """The name of a message that is void after so many seconds; None if it cannot be sent now."""
        node = self._roster.node(client)
        if node is None:
            return None
        try:
            name = self._transport.push(node, body, max(1.0, seconds))
        except ConnectionError:
            return None
        self.traffic.messages += 1
        self.traffic.down += len(body)
        return name

    def post(self, kind: str, client: int, job: int) -> None:
        """Send a message about a job to a node that takes messages while it works; its answer does not matter."""
        if self._transport.interrupts:
            self.send(client, Message(kind, {**self._roster.whose, "job": job}).pack(), self._limits.least)

    def opened(self, body: bytes, most: int) -> Message:
        """A message, which may have so many bytes; raises EnvelopeError."""
        most = most if self._limits.most is None else self._limits.most
        if len(body) > most:
            raise EnvelopeError(over(len(body), most))
        return Message.unpack(body)

    def ask(
        self, packs: Mapping[int, Callable[[], bytes]], seconds: Mapping[int, float], most: int
    ) -> dict[int, Message]:
        """Make and send a message to each client, and wait for all answers, of so many bytes at most.

        Who does not answer in time is left out, and who is away for longer than a job would wait for it. Other answers
        wait in the backlog.
        """
        begun, found = self._now(), dict[int, Message]()
        self.problems = dict.fromkeys(packs, "it did not answer")
        away_since = dict[int, float]()
        tries, not_before = dict.fromkeys(packs, 0), dict.fromkeys(packs, 0.0)
        out: dict[str, int] = {}
        open_ = set(packs)
        while open_:
            for client in sorted(open_ - set(out.values())):
                if self._now() < not_before[client]:
                    continue
                if self._roster.node(client) is None:
                    if self._now() - away_since.setdefault(client, self._now()) > self._limits.absent:
                        open_.discard(client)
                    continue
                away_since.pop(client, None)
                if tries[client] > self._limits.retries:
                    open_.discard(client)
                    continue
                name = self.send(client, packs[client](), seconds[client] - (self._now() - begun))
                if name is not None:
                    out[name] = client
                    tries[client] += 1
            self.fetch()
            for item in [*self.backlog]:
                client = out.pop(item[1].message, -1)
                if client < 0:
                    continue
                self.backlog.remove(item)
                message = self._plain(client, item[1], most)
                not_before[client] = self._now() + self._limits.pause(tries[client])
                if message is not None:
                    found[client] = message
                    del self.problems[client]
                    open_.discard(client)
            open_ -= {client for client in open_ if self._now() - begun > seconds[client]}
            if open_:
                self._sleep(self._limits.poll)
        self._transport.forget([*out])
        return found

    def _plain(self, client: int, reply: Reply, most: int) -> Message | None:
        """The answer of a client, unless it failed."""
        why = reply.error
        if reply.body is not None:
            try:
                message = self.opened(reply.body, most)
                if message.kind != FAILED and message.facts.get("run") == self._roster.run:
                    return message
                why = told_why(message) if message.kind == FAILED else "it answered for another run"
                self._roster.failed(client, message)
            except EnvelopeError as error:
                why = words(error)
        self.problems[client] = why
        self._roster.tell(f"{self._roster.sites[client]} did not answer ({why})")
        return None
