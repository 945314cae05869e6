"""What may be done to an upload on its way: the base of all transforms, and a chain of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.config.section import Section
from fedkeel.methods.types import Message, Sends

Keys = Callable[[int], NDArray[np.uint64]]
"""[k], by the number of a transform in its chain: names of random streams, one for each client."""
STATE = "wire/"
"""Begins the names of what a client keeps for transforms."""


@dataclass(frozen=True)
class Upload:
    """What k clients send and transforms may change; sums, counts and batch-norm statistics are not part of it."""

    update: Tensor
    """[k, d], new minus old weights, of the weights that travel."""
    messages: Message
    """[k, ...], the messages in the weights' type."""
    beside: Message = field(default_factory=dict)
    """[k, ...], what a transform adds for its own `decode`, such as the places of the largest numbers."""

    def to(self, dtype: torch.dtype) -> Upload:
        """Update and messages in another type."""
        messages = {name: each.to(dtype) for name, each in self.messages.items()}
        return replace(self, update=self.update.to(dtype), messages=messages)


@dataclass(frozen=True)
class Size:
    """What the update of a client or one of its messages weighs."""

    numbers: int
    width: int
    """Bytes of each number."""
    beside: int = 0
    """Bytes that go along with them."""

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.numbers * self.width + self.beside


class Transform(Section):
    """Encodes an upload on the client's side and decodes it on the server's; works on stacks of clients."""

    kind: str
    needs_weights: ClassVar[bool] = False
    """Whether it has no effect where clients send no weights."""

    def initial(self, w: Tensor) -> Message:
        """What a client keeps for it before its first job, given the first global model [d], where it travels."""
        return {}

    def encode(self, upload: Upload, kept: Message, keys: NDArray[np.uint64]) -> tuple[Upload, Message]:
        """(What goes on, what each client keeps); `keys` [k] name a random stream of each client's own (`streams`)."""
        raise NotImplementedError

    def decode(self, upload: Upload, start: Tensor) -> Upload:
        """As the server reads it; `start` [k, d] are the weights that travel, as the clients received them."""
        return upload

    def size(self, before: Size, update: bool) -> Size:
        """The size of the update, or of a message, after this transform, given its size before."""
        return before


@dataclass(frozen=True)
class Chain:
    """Transforms, in the order in which clients apply them."""

    transforms: Sequence[Transform] = ()

    def __bool__(self) -> bool:
        return bool(self.transforms)

    def nbytes(self, numbers: int, width: int, update: bool) -> int:
        """The bytes of an update or a message as it is sent, given its numbers and their width in memory."""
        sent = Size(numbers, width)
        for transform in self.transforms:
            sent = transform.size(sent, update)
        return sent.nbytes

    def initial(self, w: Tensor) -> Message:
        """What a client keeps for all of them before its first job."""
        first = enumerate(transform.initial(w) for transform in self.transforms)
        return {f"{STATE}{number}/{name}": tensor for number, kept in first for name, tensor in kept.items()}

    def encode(self, upload: Upload, kept: Message, keys: Keys) -> tuple[Upload, dict[str, Tensor]]:
        """(What travels, what clients keep for that)."""
        after: dict[str, Tensor] = {}
        for number, transform in enumerate(self.transforms):
            own = f"{STATE}{number}/"
            mine = {name.removeprefix(own): tensor for name, tensor in kept.items() if name.startswith(own)}
            upload, keeps = transform.encode(upload, mine, keys(number))
            after |= {own + name: tensor for name, tensor in keeps.items()}
        return upload, after

    def decode(self, upload: Upload, start: Tensor) -> Upload:
        """As the server reads it; `start` [k, d] are the weights that travel, as the clients received them."""
        for transform in reversed(self.transforms):
            upload = transform.decode(upload, start)
        return upload


def apart(kept: Message) -> tuple[Message, Message]:
    """(What a client keeps for a chain, what it keeps for its rule)."""
    state = {name: tensor for name, tensor in kept.items() if name.startswith(STATE)}
    return state, {name: tensor for name, tensor in kept.items() if name not in state} if state else kept


@dataclass(frozen=True)
class Where:
    """Names the random streams of k clients' transforms."""

    seed: int
    waves: ArrayLike
    """The dispatch of each."""
    clients: ArrayLike

    def keys(self, number: int) -> NDArray[np.uint64]:
        """[k], for the transform of this number."""
        return streams.keys(self.seed, "wire", number, np.array(self.waves), np.array(self.clients))


def encoded(
    chain: Chain,
    w: Tensor,
    start: Tensor,
    travels: Tensor | None,
    messages: Message,
    sends: Mapping[str, Sends],
    kept: Message,
    where: Where,
) -> tuple[Upload, dict[str, Tensor]]:
    """(What k clients send of their weights [k, D] and messages, what they keep for the chain).

    Clients started from `start` [k, D] and send the weights that `travels` [D] names, or all.
    """
    wide = {name: tensor for name, tensor in messages.items() if sends[name].goes_through}
    received, trained = (w_ if travels is None else w_[:, travels] for w_ in (start, w))
    return chain.encode(Upload(trained - received, wide), kept, where.keys)


def decoded(chain: Chain, sent: Upload, w: Tensor, start: Tensor, travels: Tensor | None) -> tuple[Tensor, Message]:
    """(The weights [k, D] as the server reads them, the messages that went through).

    Weights that do not travel are those of `w` [k, D].
    """
    received = start if travels is None else start[:, travels]
    read = chain.decode(sent, received)
    moved = received + read.update
    return moved if travels is None else w.masked_scatter(travels, moved), read.messages
