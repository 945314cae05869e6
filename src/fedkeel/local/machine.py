"""The machine: its processor, and how much of it the system lets this process use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CPUINFO = Path("/proc/cpuinfo")
GROUPS, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SLURM = "SLURM_CPUS_PER_TASK"
OURS = "FEDKEEL_CORES"
"""Variables of the environment that hold a number of cores: what SLURM gave a task, and what a user gives fedkeel."""
_UNLIMITED = 1 << 60
"""A limit on memory as high as this is none: so does Linux write it."""


def processor() -> str:
    """Its name, as far as the system says."""
    with suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def cores() -> int:
    """How many this process may use."""
    return int(cores_and_why()[0])


def cores_and_why() -> tuple[int, str]:
    """(How many cores this process may use, what limits it to these, in a few words)."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {"this machine has no more": os.cpu_count() or 1, "its affinity": known}
    if (group := limits().cores) is not None:
        found["a control group"] = max(1, int(group))
    for name in (SLURM, OURS):
        if (told := os.environ.get(name, "")).isdecimal() and int(told) > 0:
            found[name] = int(told)
    least = min(found.values())
    return least, next(why for why, count in found.items() if count == least)


@dataclass(frozen=True)
class Limits:
    """What a container or the like may use at most; None where there is no limit."""

    cores: float | None
    memory: int | None
    """Bytes."""


def limits(groups: Path = GROUPS, mine: Path = MINE) -> Limits:
    """Of the control groups that this process is in, and of those around them."""
    try:
        lines = [line.split(":", 2) for line in mine.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return Limits(None, None)
    cores, memory = list[float](), list[int]()
    for _, names, path in (line for line in lines if len(line) == 3):
        kinds = names.split(",")
        for folder in _folders(groups, names, path):
            if not names:
                cores += _share(_words(folder / "cpu.max"))
                memory += _count(_words(folder / "memory.max"))
            if "cpu" in kinds:
                cores += _share([*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")])
            if "memory" in kinds:
                memory += _count(_words(folder / "memory.limit_in_bytes"))
    return Limits(min(cores, default=None), min(memory, default=None))


def _folders(groups: Path, names: str, path: str) -> Iterator[Path]:
    """Where a group's files may be, and those of the groups around it."""
    inside = PurePosixPath(path.lstrip("/"))
    for mount in (groups / names, *(groups / name for name in names.split(","))) if names else (groups,):
        for each in (inside, *inside.parents):
            yield mount / each


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return []


def _share(words: list[str]) -> list[float]:
    """Of a quota and its period, unless the quota is none."""
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or nothing
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _count(words: list[str]) -> list[int]:
    return [int(word) for word in words[:1] if word.isdecimal() and int(word) < _UNLIMITED]
