"""Named random streams: every draw is a function of (seed, purpose, where), never of the order of calls.

A key is 64 bits, mixed from the seed, the purpose's name and any number of integers (round, client, epoch).
Keys and raw bits are computed for whole arrays of clients at once, so that a stack of a thousand clients
draws exactly what each of them would have drawn alone.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_ALL = (1 << 64) - 1
_PLACES = np.uint64((1 << 24) - 1)
"""The bits of a draw that may be given up for a place in a row."""


def _mix(z: Bits) -> Bits:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=1024)
def _root(seed: int, purpose: str) -> int:
    return int.from_bytes(blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest(), "little")


def keys(seed: int, purpose: str, *where: Any) -> Bits:
    """64-bit keys, one for each element of the integers in `where` broadcast against each other."""
    key = np.array([_root(seed, purpose)], dtype=np.uint64)
    for number in where:
        number = np.atleast_1d(np.asarray(number, dtype=np.int64)).astype(np.uint64)
        key = _mix(key * _STEP + _mix(number + _STEP))
    return key


def key(seed: int, purpose: str, *where: int) -> int:
    """One of these keys, in plain integers, faster than an array of length one."""
    result = _root(seed, purpose)
    for number in where:
        result = _mix_one(result * int(_STEP) + _mix_one(number + int(_STEP)))
    return result


def _mix_one(z: int) -> int:
    z &= _ALL
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _ALL
    return z ^ (z >> 31)


def bits(stream: Bits, count: int) -> Bits:
    """`count` raw 64-bit draws for each key: SplitMix64 started at that key, shape [..., count]."""
    counter = np.arange(1, count + 1, dtype=np.uint64) * _STEP
    return _mix(stream[..., None] + counter)


def uniform(stream: Bits, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for each key, shape [..., count]."""
    return (bits(stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutations(stream: Bits, counts: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """A permutation of range(count) for each key, shape [..., largest count]; shorter rows go on with the rest."""
    drawn = bits(stream, int(np.max(counts)))
    if np.ndim(counts):
        drawn[np.arange(drawn.shape[-1]) >= np.asarray(counts)[..., None]] = _ALL  # which are left behind
    # Sorting draws that carry their own places is several times as fast as sorting places by draws.
    places = np.arange(drawn.shape[-1], dtype=np.uint64)
    if len(places) > int(_PLACES):
        return np.argsort(drawn, axis=-1, kind="stable")
    drawn &= ~_PLACES
    drawn |= places
    drawn.sort(axis=-1)
    drawn &= _PLACES
    return drawn.view(np.int64)


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """A numpy generator for draws that need more than bits and permutations."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, *where)))
