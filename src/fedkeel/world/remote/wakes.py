"""Dispatches that the server has asked for, on the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from fedkeel.server.events import WakeMe, When

PATIENCE = 5.0
"""Seconds after which the server looks again for somebody to work, though nobody came."""


@dataclass
class _Wake:
    when: str
    base: float
    tick: float
    free: frozenset[int]
    """Who could be given a job when it was asked for."""
    due: float | None = None

    def settle(self, now: float) -> None:
        """What it waited for has come: it is due at the first tick since the wish that is not before now."""
        steps = max(1, ceil((now - self.base) / self.tick - 1e-9)) if self.tick else 0
        self.due = self.base + self.tick * steps if self.tick else now


@dataclass
class Wakes:
    """When dispatches are due; see `WakeMe`."""

    _all: list[_Wake] = field(default_factory=list)

    def add(self, command: WakeMe, now: float, free: frozenset[int]) -> None:
        """The server asks for a dispatch; an earlier wish of the same kind is forgotten."""
        wake = _Wake(command.when.name, now, command.tick, free)
        if command.when is When.NOW:
            wake.due = now + command.tick
        self._all = [*(each for each in self._all if (each.when, each.tick) != (wake.when, wake.tick)), wake]

    def change(self, now: float) -> None:
        """Something happened."""
        for wake in self._all:
            if wake.when == When.CHANGE.name and wake.due is None:
                wake.settle(now)

    def take(self, now: float, free: frozenset[int], busy: bool) -> bool:
        """Whether a dispatch is due, which is then taken; `busy` says whether anything can still happen."""
        for wake in self._all:
            if wake.due is None:
                late = bool(free) and now > wake.base + PATIENCE
                if (free - wake.free or late) if wake.when == When.DEVICE.name else not busy:
                    wake.settle(now)
            if wake.due is not None and now >= wake.due:
                self._all.remove(wake)
                return True
        return False

    def snapshot(self) -> list[list[Any]]:
        """In plain values."""
        return [[each.when, each.base, each.tick] for each in self._all]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Go on from there."""
        self._all = [_Wake(when, base, tick, frozenset()) for when, base, tick in state]
        for wake in self._all:
            if wake.when == When.NOW.name:
                wake.due = wake.base + wake.tick
