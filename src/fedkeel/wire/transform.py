"""What may be done to an upload on its way: the base of all transforms, and a chain of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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
    """What k clients send, where transforms may change it; sums, counts and batch-norm statistics go beside it."""

    update: Tensor
    """[k, d], new minus old weights, of those that travel."""
    messages: Message
    """[k, ...], those in the weights' type."""


class Transform(Section):
    """Encodes an upload on the client's side and decodes it on the server's; works on stacks of clients."""

    kind: str

    def initial(self, w: Tensor) -> Message:
        """What a client keeps for it before its first job, given the first global model [d], where it travels."""
        return {}

    def encode(self, upload: Upload, kept: Message, keys: NDArray[np.uint64]) -> tuple[Upload, Message]:
        """(What goes on, what each client keeps); `keys` [k] name a random stream of each client's own (`streams`)."""
        raise NotImplementedError

    def decode(self, upload: Upload, dtype: torch.dtype) -> Upload:
        """As the server reads it, whose weights are of that type."""
        return upload

    def nbytes(self, numbers: int, before: int) -> int:
        """What so many numbers weigh behind it, if they weighed so much before."""
        return before


@dataclass(frozen=True)
class Chain:
    """Transforms, in the order in which clients apply them."""

    transforms: Sequence[Transform] = ()

    def __bool__(self) -> bool:
        return bool(self.transforms)

    def nbytes(self, numbers: int, itemsize: int) -> int:
        """What so many numbers weigh as they are sent, if each has so many bytes in memory."""
        sent = numbers * itemsize
        for transform in self.transforms:
            sent = transform.nbytes(numbers, sent)
        return sent

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

    def decode(self, upload: Upload, dtype: torch.dtype) -> Upload:
        """As the server reads it, whose weights are of that type."""
        for transform in reversed(self.transforms):
            upload = transform.decode(upload, dtype)
        return upload


def apart(kept: Message) -> tuple[Message, Message]:
    """(What a client keeps for a chain, what it keeps for its rule)."""
    state = {name: tensor for name, tensor in kept.items() if name.startswith(STATE)}
    return state, {name: tensor for name, tensor in kept.items() if name not in state} if state else kept


@dataclass(frozen=True)
class Read:
    """What the server reads of k clients' uploads, and what the clients keep for the chain."""

    w: Tensor
    messages: dict[str, Tensor]
    kept: dict[str, Tensor]


def changed(
    chain: Chain,
    w: Tensor,
    start: Tensor,
    travels: Tensor | None,
    messages: Message,
    sends: Mapping[str, Sends],
    kept: Message,
    where: tuple[int, Sequence[int], Sequence[int]],
) -> Read:
    """Weights [k, D] and messages, encoded and decoded again.

    Clients started from `start` [k, D] and send the weights that `travels` [D] names, or all; the others stay as they
    were trained. `where` names the random streams: the seed, the dispatch of each client, and the client.
    """
    seed, waves, clients = where

    def keys(number: int) -> NDArray[np.uint64]:
        return streams.keys(seed, "wire", number, np.array(waves), np.array(clients))

    wide = {name: tensor for name, tensor in messages.items() if sends[name].goes_through}
    update = w - start if travels is None else (w - start)[:, travels]
    sent, after = chain.encode(Upload(update, wide), kept, keys)
    read = chain.decode(sent, w.dtype)
    moved = (start if travels is None else start[:, travels]) + read.update
    arrived = moved if travels is None else w.masked_scatter(travels, moved)
    return Read(arrived, {**messages, **read.messages}, after)


def mapped(upload: Upload, dtype: torch.dtype) -> Upload:
    """Every tensor in another type."""
    return Upload(upload.update.to(dtype), {name: each.to(dtype) for name, each in upload.messages.items()})
