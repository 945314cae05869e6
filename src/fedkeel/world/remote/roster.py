"""Which sites take part: who is connected, what they said of themselves, and statistics that they compute together.

A node is asked who it is (`hello`). Before it answers (`here`), it may want numbers of all sites' data put together
(`pool`); the server puts them together and gives them to all (`pooled`). A site whose first model differs from the
server's gets that (`begin`, answered by `ready`). A site that cannot take part is told why (`refused`, answered by
`ok`), once for each reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import FedkeelError, InputError, label, shown, words
from fedkeel.world.remote.envelope import FAILED, EnvelopeError, over
from fedkeel.world.remote.jobs import seconds
from fedkeel.world.remote.message import Message, told_why
from fedkeel.world.remote.pooling import Pooling
from fedkeel.world.remote.transport import Reply, Transport

LOOK = 0.5
"""Seconds between two looks at who is connected."""
AGAIN = 10.0
"""Seconds after which a node that could not join is asked again."""
PATIENCE = 10
"""How many times a node is asked who it is, within the time that it may take: a message may be lost."""
MOST = 1 << 24
"""Bytes of the largest answer to the roster."""
SMALL = ("hello", "pooled")
"""Messages that are small, and so are their answers: they tell how long any message is on its way."""
_ANSWERS = {"hello": ("pool", "here"), "pooled": ("pool", "here"), "begin": ("ready",)}
"""What each message may be answered with."""
_REFUSED = "refused"
"""A message whose answer is of no interest."""


class _RefusalError(FedkeelError):
    """A site cannot take part for a reason that waiting does not change."""


@dataclass
class Member:
    """A site that takes part."""

    client: int
    node: int
    facts: Mapping[str, Any]
    """What it said of itself."""
    ready: bool = False
    """Whether it can be given jobs."""


@dataclass
class _Talk:
    """A message of the roster that waits for an answer."""

    node: int
    kind: str
    until: float
    """When nobody waits for it any more."""
    sent: float


@dataclass
class Roster:
    """The sites by their places in `sites`; a site belongs to the node that first came under its name."""

    transport: Transport
    sites: Sequence[str]
    run: str
    session: int
    """The number of this start of the server; a later one has a higher number."""
    pooling: Pooling
    seconds: float = 600.0
    """How long a node may take to get ready."""
    first: float = 1800.0
    """How long the first model may be on its way."""
    keyed: frozenset[str] = frozenset()
    """Sites whose nodes are known by their keys; without a key, a node that is started again has another number."""
    nodes_of: dict[str, int] = field(default_factory=dict)
    """By site: the node that it belongs to."""
    members: dict[int, Member] = field(default_factory=dict)
    """By client."""
    problems: dict[str, str] = field(default_factory=dict)
    """By site, or by the number of a node: why it does not take part."""
    refused: set[str] = field(default_factory=set)
    """Of these, those whose reason does not change by waiting: somebody must mend something."""
    admit: Callable[[Member], Message | None] | None = None
    """Checks a site when the model is known: what it must be sent before it is ready, if anything. Raises
    FedkeelError if it cannot take part. Without it, sites wait."""
    check: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Refuses what a site cannot be, with FedkeelError."""
    joined: Callable[[], None] = lambda: None
    """Called when a site came for the first time, or something else is to be written down."""
    tell: Callable[[str], None] = print
    clock: Callable[[], float] = monotonic
    connected: frozenset[int] = frozenset()
    waits: dict[str, float] = field(default_factory=dict)
    """By site: the fewest seconds that a small message and its answer were on their way."""
    lost: dict[str, list[int]] = field(default_factory=dict)
    """By site: the jobs after which it has lost what it kept."""
    _talks: dict[str, _Talk] = field(default_factory=dict)
    _not_before: dict[int, float] = field(default_factory=dict)
    """By node: when to ask it again."""
    _been: set[int] = field(default_factory=set)
    """Clients that have been here."""
    _superseded: set[int] = field(default_factory=set)
    """Nodes that work for another server, as they say."""
    _told: dict[int, str] = field(default_factory=dict)
    """By node: what it was told that it is refused for."""
    _looked: float = -1e9

    def look(self) -> None:
        """See who is connected, and talk to who is new; a transport that cannot be reached raises ConnectionError."""
        self._check_ours()
        now = self.clock()
        for name, talk in [*self._talks.items()]:
            if now > talk.until:
                del self._talks[name]
                self._told.pop(talk.node, None)
                if talk.kind != _REFUSED:
                    self._fail(talk.node, "it did not answer in time")
        if now - self._looked < LOOK:
            return
        self._looked = now
        before, self.connected = self.connected, frozenset(self.transport.nodes())
        for node in sorted(before - self.connected):
            self._say(node, "is not connected any more")
            self._told.pop(node, None)
        known = {member.node for member in self.members.values()}
        busy = {talk.node for talk in self._talks.values()} | set(self.pooling.nodes.values())
        for node in sorted(self.connected - known - busy):
            if now >= self._not_before.get(node, 0.0):
                self._send(node, Message("hello", self.whose))
        self._pool()  # what could not be sent when it was known
        if self.admit is not None:
            for member in [*self.members.values()]:
                free = member.node in self.connected - busy and now >= self._not_before.get(member.node, 0.0)
                if not member.ready and free:
                    self._admit(member)

    @property
    def whose(self) -> dict[str, Any]:
        """What every message says of where it comes from."""
        return {"run": self.run, "session": self.session}

    def _send(self, node: int, message: Message) -> None:
        most = self.first if message.kind == "begin" else self.seconds / PATIENCE
        name = self.transport.push(node, message.pack(), most)
        self._talks[name] = _Talk(node, message.kind, self.clock() + most, self.clock())

    def take(self, reply: Reply) -> bool:
        """Whether this was an answer to the roster; it is dealt with."""
        talk = self._talks.pop(reply.message, None)
        if talk is None:
            return False
        if talk.kind == _REFUSED:
            if reply.body is None:  # it is told again
                self._told.pop(talk.node, None)
            return True
        try:
            if reply.body is None:
                raise FedkeelError(reply.error)
            if len(reply.body) > MOST:
                raise FedkeelError(over(len(reply.body), MOST))
            message = Message.unpack(reply.body)
            self._heard(talk, message)
        except _RefusalError as error:
            self._refuse(talk.node, words(error))
        except (FedkeelError, EnvelopeError) as error:
            self._fail(talk.node, words(error))
        except ConnectionError:  # `look` tries again
            pass
        except Exception as error:  # whatever a site sends, the server goes on
            self._fail(talk.node, f"it cannot be read ({type(error).__name__}: {words(error)})")
        return True

    def _heard(self, talk: _Talk, message: Message) -> None:
        node = talk.node
        if message.kind == FAILED:
            if message.facts.get("unknown"):
                self._forget(node)
            if message.facts.get("superseded"):
                self._superseded.add(node)
            self._fail(node, told_why(message), lasting=message.facts.get("wrong") is True)
            return
        if message.facts.get("run") != self.run:
            raise FedkeelError("it answered for another run; restart its node if this goes on")
        if message.kind not in _ANSWERS[talk.kind]:
            raise FedkeelError(f"it answered with {label(message.kind)}")
        if message.kind == "ready":
            for member in self.members.values():
                member.ready |= member.node == node
            return
        client = self._client(node, message.facts.get("site"))
        site, waited = self.sites[client], max(0.0, self.clock() - talk.sent - seconds(message))
        if message.kind == "pool" and site not in self.waits:
            self.tell(f"{site} is connected; statistics wait for the other sites")
        self.waits[site] = min(waited, self.waits.get(site, inf))
        if message.kind == "pool":
            self.pooling.ask(client, node, message)
            self._own(client, node)
            self._pool()
        else:
            self._join(Member(client, node, message.facts))

    def _own(self, client: int, node: int) -> None:
        """The name of the site belongs to the node."""
        self.nodes_of[self.sites[client]] = node
        self._clear(str(node))

    def _clear(self, who: str) -> None:
        self.problems.pop(who, None)
        self.refused.discard(who)

    def _join(self, member: Member) -> None:
        """A site says that it is here."""
        client, site = member.client, self.sites[member.client]
        try:
            self.check(member.facts)
        except FedkeelError as error:
            raise _RefusalError(str(error)) from None
        new = site not in self.nodes_of
        self._own(client, member.node)
        self.pooling.leave(member.node)
        more = self._wanted(member)
        self._clear(site)
        self._told.pop(member.node, None)
        self._superseded.discard(member.node)
        back = client in self._been
        self._been.add(client)
        self.members[client] = member
        self.tell(f"{site} is {'back' if back else 'here'}, {member.facts.get('samples')} samples")
        if new or not back:
            self.joined()
        if self.admit is not None:
            self._begin(member, more)

    def _wanted(self, member: Member) -> Message | None:
        """What a site must be sent before it is ready, if anything; raises if it cannot take part."""
        try:
            return None if self.admit is None else self.admit(member)
        except FedkeelError as error:
            raise _RefusalError(str(error)) from None

    def _begin(self, member: Member, more: Message | None) -> None:
        if more is None:
            member.ready = True
        else:
            self._send(member.node, Message(more.kind, {**more.facts, **self.whose}, more.tensors))

    def _client(self, node: int, site: object) -> int:
        """The number of a site; a name belongs to the first node that came under it."""
        if not isinstance(site, str) or site not in self.sites:
            raise _RefusalError(
                f"it calls itself {shown(site)}, which is not one of the sites of deploy.yaml; add it there, or "
                "give the node the name of a site"
            )
        owner = self.nodes_of.get(site, node)
        if owner != node and (site in self.keyed or owner in self.connected):
            raise _RefusalError(
                f"it calls itself {site}, which belongs to another node; give it the key of that site, or its own name"
            )
        if next((name for name, owner in self.nodes_of.items() if owner == node), site) != site:
            raise _RefusalError(
                f"it calls itself {site}, but came under another name before; give each node a site of its own"
            )
        return [*self.sites].index(site)

    def _pool(self) -> None:
        """Give sites the statistics that they wait for; late ones get what is known."""
        pooling = self.pooling
        try:
            while pooling.known() or pooling.advance():
                for client, result in pooling.known().items():
                    self._send(pooling.nodes[client], replace(result, facts={**result.facts, **self.whose}))
                    pooling.given(client)
                    self._clear(self.sites[client])
        except FedkeelError as error:  # they do not fit together; it says who differs
            for node in pooling.dissolve():
                self._refuse(node, words(error))

    def _admit(self, member: Member) -> None:
        try:
            more = self._wanted(member)
        except _RefusalError as error:
            del self.members[member.client]
            self._refuse(member.node, str(error))
        else:
            self._begin(member, more)

    def failed(self, client: int, answer: Message) -> None:
        """A site that has forgotten the run, or works for another server, is asked anew."""
        lost = answer.facts.get("superseded")
        member = self.members.pop(client, None) if lost or answer.facts.get("unknown") else None
        if member is not None:
            self._not_before[member.node] = self.clock()
            self._looked = -1e9
            self._superseded |= {member.node} if lost else set()

    def _check_ours(self) -> None:
        """End if all sites that are connected work for another server; one alone may be mistaken."""
        there = {self.nodes_of[self.sites[client]] for client in self._been} & self.connected
        if there and there <= self._superseded:
            raise InputError("another server has taken over the sites; end one of the two, then resume the run")

    def _forget(self, node: int) -> None:
        for client in [client for client, member in self.members.items() if member.node == node]:
            del self.members[client]

    def _refuse(self, node: int, why: str) -> None:
        """The site cannot take part until somebody mends something: say so, here and there."""
        self._fail(node, why, lasting=True)
        self._been -= {client for client, site in enumerate(self.sites) if self.nodes_of.get(site) == node}
        if self._told.get(node) != why:
            with suppress(ConnectionError):  # it is refused again
                self._send(node, Message(_REFUSED, {**self.whose, "why": why}))
                self._told[node] = why

    def _fail(self, node: int, why: str, lasting: bool = False) -> None:
        self.pooling.leave(node)
        self._not_before[node] = self.clock() + AGAIN
        who = next((site for site, owner in self.nodes_of.items() if owner == node), str(node))
        if self.problems.get(who) != why:
            self._say(node, f"cannot take part: {why}")
        self.problems[who] = why
        (self.refused.add if lasting else self.refused.discard)(who)

    def _say(self, node: int, what: str) -> None:
        who = next((site for site, owner in self.nodes_of.items() if owner == node), f"node {node}")
        self.tell(f"{who} {what}")

    @property
    def samples(self) -> NDArray[np.int64]:
        """[N], of the sites that are ready; 0 of others."""
        found = np.zeros(len(self.sites), dtype=np.int64)
        for client, member in self.members.items():
            found[client] = member.facts["samples"] if member.ready else 0
        return found

    def node(self, client: int) -> int | None:
        """The node of a client that can be given jobs now."""
        member = self.members.get(client)
        return member.node if member is not None and member.ready and member.node in self.connected else None
