"""torch's global generator of random numbers, for modules that draw from no other; threads of a process share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import torch

_LOCK = Lock()
"""torch holds a mutex while it makes the object for the state of a generator. If the garbage collector lets another
thread run then, which wants the same mutex, both wait for ever. With this lock, the other one waits here."""


def seed(value: int) -> None:
    """Seed the generator of the CPU; `torch.manual_seed` takes a millisecond without CUDA."""
    with _LOCK:
        torch.default_generator.manual_seed(value)


def seed_all(value: int) -> None:
    """Seed the generators of all devices."""
    with _LOCK:
        torch.manual_seed(value)


@contextmanager
def restored(devices: Sequence[torch.device] = (), enabled: bool = True) -> Iterator[None]:
    """Afterwards the generators of the CPU and of these devices are as they were before."""
    forked = torch.random.fork_rng([*devices], enabled=enabled)
    with _LOCK:
        forked.__enter__()
    try:
        yield
    finally:
        with _LOCK:
            forked.__exit__(None, None, None)
