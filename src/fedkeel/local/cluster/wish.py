"""What is asked of a cluster, and how much of it fits on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fedkeel.local.settings import ExecutorSettings

GB = 1e9


@dataclass(frozen=True)
class Wish:
    """What was asked for: a cluster, and workers on it."""

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory: float = 0.0
    """In GB."""

    @classmethod
    def of(cls, settings: ExecutorSettings) -> Wish:
        """By an experiment."""
        asked = {name: getattr(settings, name) for name in ("address", "workers", "cpus", "gpus", "memory")}
        return cls(**{name: value for name, value in asked.items() if value is not None})

    @property
    def resources(self) -> dict[str, float]:
        """Of one worker, as Ray counts them."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * GB}
        return {name: value for name, value in asked.items() if value}

    @property
    def words(self) -> str:
        """What one worker needs."""
        parts = [f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}"]
        parts += [f"{self.gpus:g} GPU{'s' * (self.gpus != 1)}"] * bool(self.gpus)
        parts += [f"{self.memory:g} GB of memory"] * bool(self.memory)
        return " and ".join(parts)


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, or what Ray takes for one."""

    id: str
    host: str
    resources: dict[str, float]

    def room(self, resources: dict[str, float]) -> int:
        """How many workers fit on it when it is empty."""
        return int(min((self.resources.get(name, 0.0) / need for name, need in resources.items()), default=inf) + 1e-9)
