"""Which client has which samples, as two flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Assignment:
    """Compressed rows: a million clients cost two arrays, not a million."""

    indices: NDArray[np.int64]
    """[samples of clients], sample numbers, client after client."""
    offsets: NDArray[np.int64]
    """[clients + 1], where each client's samples begin in `indices`, and the end."""

    @classmethod
    def from_owner(cls, owner: NDArray[np.int64], clients: int) -> Assignment:
        """From the client of each sample; a client's samples come in ascending order."""
        sizes = np.bincount(owner, minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(np.argsort(owner, kind="stable").astype(np.int64, copy=False), offsets)

    def capped(self, most: int, draw: np.random.Generator) -> Assignment:
        """At most so many samples a client, each subset of them alike likely, in the same order as before."""
        shuffled = draw.permutation(len(self.indices))
        owner = np.repeat(np.arange(len(self)), self.sizes)
        by_client = shuffled[np.argsort(owner[shuffled], kind="stable")]
        number = np.arange(len(owner)) - self.offsets[owner]
        kept = np.sort(by_client[number < most])
        offsets = np.concatenate([[0], np.cumsum(np.minimum(self.sizes, most))]).astype(np.int64)
        return Assignment(self.indices[kept], offsets)

    def some(self, first: int, last: int) -> Assignment:
        """These clients alone; the last one is not among them."""
        offsets = self.offsets[first : last + 1]
        return Assignment(self.indices[offsets[0] : offsets[-1]], offsets - offsets[0])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        """The client's sample numbers, a view."""
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[clients], samples of each."""
        return np.diff(self.offsets)
