"""Memory that processes share: one writes tensors into it, others read them where they lie. And memory that is kept."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CAN_SHARE = hasattr(os, "memfd_create")
"""Linux only."""
_ALIGNMENT = 64
_TRIM, _MMAP = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""
_KEPT, _LARGE = 1 << 28, 1 << 25
"""Bytes at the end of a heap that may stay free, and how large a piece must be to be given back at once."""


def keep_freed() -> None:
    """Let this process keep memory that it frees and soon needs again: fresh pages take longer than what they hold.

    That is a setting of glibc for the whole process; elsewhere everything stays as it is.
    """
    set_ = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if set_ is not None:
        set_(_MMAP, _LARGE)
        set_(_TRIM, _KEPT)


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a block."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def stop(self) -> int:
        """One past its last byte."""
        return self.start + prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Parcel:
    """Tensors in shared memory as another process is told of them: a few words, no tensor."""

    path: str
    size: int
    places: Mapping[str, Place]


class Lender:
    """Lends blocks of memory; a block comes back when the last tensor that lies in it is gone.

    Shared blocks have no name in any file system: whatever ends the processes that use them, nothing is left behind.
    """

    def __init__(self, shared: bool = True) -> None:
        self._shared = shared
        self._free: list[_Block] = []
        self._files: list[int] = []

    def lend(self, wanted: Mapping[str, tuple[Iterable[int], torch.dtype]]) -> tuple[Parcel, dict[str, Tensor]]:
        """New tensors of these shapes and types, their contents undefined."""
        places, end = {}, 0
        for name, (shape, dtype) in wanted.items():
            places[name] = Place(-(-end // _ALIGNMENT) * _ALIGNMENT, tuple(shape), dtype)
            end = places[name].stop
        block = self._take(max(end, 1))
        base = np.frombuffer(block.memory, dtype=np.uint8)
        weakref.finalize(base, self._free.append, block).atexit = False  # every tensor in it holds on to base
        return Parcel(block.path, block.size, places), _tensors(base, places)

    def _take(self, size: int) -> _Block:
        """The smallest free block that is large enough, else a new one; sizes are powers of two, so few."""
        fits = [block for block in self._free if block.size >= size]
        if fits:
            best = min(fits, key=lambda block: block.size)
            self._free.remove(best)
            return best
        size = 1 << (size - 1).bit_length()  # pages that nobody touches cost nothing
        if not self._shared:
            return _Block(size, np.empty(size, dtype=np.uint8), "")
        file = os.memfd_create("fedkeel")
        self._files.append(file)
        os.ftruncate(file, size)
        return _Block(size, mmap.mmap(file, size), f"/proc/{os.getpid()}/fd/{file}")

    def close(self) -> None:
        """Lend no more; tensors that are out stay valid."""
        for file in self._files:
            os.close(file)
        self._files, self._free = [], []


@dataclass(frozen=True, eq=False)
class _Block:
    size: int
    memory: mmap.mmap | NDArray[np.uint8]
    path: str
    """Where another process can open it, if it is shared."""


class Reader:
    """The other side: opens each block once."""

    def __init__(self) -> None:
        self._open: dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}

    def tensors(self, parcel: Parcel) -> dict[str, Tensor]:
        """The tensors in a parcel, where they lie."""
        if parcel.path not in self._open:
            file = os.open(parcel.path, os.O_RDWR)
            self._open[parcel.path] = np.frombuffer(mmap.mmap(file, parcel.size), dtype=np.uint8)
            os.close(file)
        return _tensors(self._open[parcel.path], parcel.places)


def _tensors(base: np.ndarray[tuple[int], np.dtype[np.uint8]], places: Mapping[str, Place]) -> dict[str, Tensor]:
    whole = torch.from_numpy(base)
    return {name: whole[p.start : p.stop].view(p.dtype).view(p.shape) for name, p in places.items()}
