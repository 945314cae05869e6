"""What may be done to an upload on its way: the base of all transforms, and a chain of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """[k, D], new minus old weights; [k, 0] where clients send no weights."""
    messages: Message
    """[k, ...], those in the weights' type."""


class Transform(Section):
    """Encodes an upload on the client's side and decodes it on the server's; works on stacks of clients."""

    kind: str

    def initial(self, w: Tensor) -> Message:
        """What a client keeps for it before its first job, given the first global model [D]."""
        return {}

    def encode(self, upload: Upload, kept: Message, keys: NDArray[np.uint64]) -> tuple[Upload, Message]:
        """(What goes on, what each client keeps); `keys` [k] name a random stream of each client's own (`streams`)."""
        raise NotImplementedError

    def decode(self, upload: Upload, like: Upload) -> Upload:
        """As the server reads it; `like` has the types that it had before `encode`."""
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

    def through(self, upload: Upload, kept: Message, keys: Keys) -> tuple[Upload, dict[str, Tensor]]:
        """(What the server reads of an upload that was encoded and decoded again, what clients keep for that)."""
        before: list[Upload] = []
        after: dict[str, Tensor] = {}
        for number, transform in enumerate(self.transforms):
            before.append(upload)
            own = f"{STATE}{number}/"
            mine = {name.removeprefix(own): tensor for name, tensor in kept.items() if name.startswith(own)}
            upload, keeps = transform.encode(upload, mine, keys(number))
            after |= {own + name: tensor for name, tensor in keeps.items()}
        for transform, like in zip(reversed(self.transforms), reversed(before), strict=True):
            upload = transform.decode(upload, like)
        return upload, after


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
    keys: Keys,
) -> Read:
    """Weights [k, D] and messages, encoded and decoded again.

    Clients started from `start` [k, D] and send the weights that `travels` [D] names, or all. Of the messages, those go
    through that are in the weights' type.
    """
    wide = {
        name: tensor for name, tensor in messages.items() if not sends[name].recorded and sends[name].nbytes is None
    }
    if travels is not None and not travels.any():
        read, after = chain.through(Upload(w.new_empty(len(w), 0), wide), kept, keys)
        return Read(w, {**messages, **read.messages}, after)
    update = w - start if travels is None else (w - start) * travels
    read, after = chain.through(Upload(update, wide), kept, keys)
    return Read(start + read.update, {**messages, **read.messages}, after)


def mapped(upload: Upload, change: Mapping[str, torch.dtype] | torch.dtype) -> Upload:
    """Every tensor in another type: one for all, or one for each message; the update's is that of ''."""

    def to(name: str, tensor: Tensor) -> Tensor:
        return tensor.to(change if isinstance(change, torch.dtype) else change[name])

    messages = {name: to(name, tensor) for name, tensor in upload.messages.items()}
    return replace(upload, update=to("", upload.update), messages=messages)
