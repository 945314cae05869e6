"""Sites in threads that pool their statistics in messages, and the same clients told apart in one simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import numpy as np
import torch

from fedkeel.data.federated import FederatedData
from fedkeel.data.pool import pooled_summary, pooled_total
from fedkeel.data.summaries import Counts, Summary
from fedkeel.data.summary_wire import counts_from_wire, summary_from_wire, summary_to_wire
from fedkeel.world.remote.message import Message

T = TypeVar("T")


class Server:
    """Waits until all sites have told something, and answers all of them. Everything goes through messages."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.told: list[Message] = [Message("nothing")] * len(names)
        self.seen: list[list[Message]] = []
        """What was told, exchange by exchange."""
        self._answer: Message | Exception = Message("nothing")
        self._barrier = Barrier(len(names), self._answered, timeout=20)

    def exchange(self, client: int, own: Message) -> Message:
        """One site's part."""
        self.told[client] = Message.unpack(own.pack())
        self._barrier.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return Message.unpack(self._answer.pack())

    def gone(self) -> None:
        """A site failed: the others are not kept waiting."""
        self._barrier.abort()

    def _answered(self) -> None:
        self.seen.append([*self.told])
        try:
            self._answer = self._pooled()
        except Exception as error:
            self._answer = error

    def _pooled(self) -> Message:
        assert len({each.kind for each in self.told}) == 1
        if self.told[0].kind == "summary":
            told = [summary_from_wire(each.facts, each.tensors) for each in self.told]
            return Message("summary", *summary_to_wire(pooled_summary(told, self.names)))
        counts = pooled_total([counts_from_wire(each.tensors["counts"]) for each in self.told], self.names)
        return Message("counts", {}, {"counts": torch.from_numpy(counts)})


@dataclass(frozen=True)
class Member:
    """A site's way to the server."""

    server: Server
    client: int
    made: list[str] = field(default_factory=list)

    def summary(self, own: Summary) -> Summary:
        self.made.append("summary")
        answer = self.server.exchange(self.client, Message("summary", *summary_to_wire(own)))
        return summary_from_wire(answer.facts, answer.tensors)

    def total(self, own: Counts) -> Counts:
        self.made.append("total")
        answer = self.server.exchange(self.client, Message("counts", {}, {"counts": torch.from_numpy(own)}))
        return counts_from_wire(answer.tensors["counts"])


def together(names: Sequence[str], act: Callable[[int, Member], T]) -> tuple[list[T], Server]:
    """What every site gets, each in a thread of its own; the first error that is not about another site is raised."""
    server = Server(names)
    members = [Member(server, client) for client in range(len(names))]

    def one(member: Member) -> T | Exception:
        try:
            return act(member.client, member)
        except BrokenBarrierError as error:
            return error
        except Exception as error:
            server.gone()
            return error

    with ThreadPoolExecutor(len(names)) as threads:
        found = [*threads.map(one, members)]
    errors = sorted((e for e in found if isinstance(e, Exception)), key=lambda e: isinstance(e, BrokenBarrierError))
    if errors:
        raise errors[0]
    assert len({tuple(member.made) for member in members}) == 1
    return [each for each in found if not isinstance(each, Exception)], server


FIELDS = ("classes", "vocabulary", "name", "client_names", "class_names", "feature_names", "resize", "augment")


def same_rows(site: FederatedData, whole: FederatedData, client: int) -> None:
    """A site's data is that of its client in the simulation, bit for bit, and it has nobody else's."""
    for name in FIELDS:
        assert getattr(site, name) == getattr(whole, name), name
    assert site.site == client
    own = [client == each for each in range(len(whole))]
    for which, rows in (("train", "assignment"), ("test", "test_rows"), ("validation", "validation_rows")):
        here, there = getattr(site, which), getattr(whole, which)
        assert (here is None) == (there is None), which
        if here is not None:
            mine, theirs = getattr(site, rows), getattr(whole, rows)
            assert mine.sizes.tolist() == [int(size) if o else 0 for size, o in zip(theirs.sizes, own, strict=True)]
            assert len(here) == theirs.sizes[client]
            for tensor in ("x", "y"):
                same_bits(getattr(here, tensor)[mine[client]], getattr(there, tensor)[theirs[client]])
    if whole.weight is not None:
        assert site.weight is not None
        same_bits(site.weight[site.client(client)], whole.weight[whole.client(client)])


def same_bits(one: Any, other: Any) -> None:
    """Tensors of one type and shape whose bytes are equal; zeros have signs."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert np.array_equal(one.contiguous().numpy().view(np.uint8), other.contiguous().numpy().view(np.uint8))
