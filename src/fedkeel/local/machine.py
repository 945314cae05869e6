"""The machine: its processor, and how much of it the system lets this process use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
GROUPS, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SLURM = "SLURM_CPUS_PER_TASK"
OURS = "FEDKEEL_CORES"
"""Variables of the environment that hold a number of cores: what SLURM gave a task, and what a user gives fedkeel."""
SLURM_MEMORY = "SLURM_MEM_PER_NODE"
"""The memory that SLURM gave a job on this machine, in MB; 0 is all of it."""
SLURM_EACH, SLURM_CORES = "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"
"""In the place of that: the memory for each core, and how many of these the job has on this machine."""
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
    found |= {name: told for name in (SLURM, OURS) if (told := _number(name))}
    return _least(found)


def all_bytes() -> int:
    """Of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def bytes_and_why() -> tuple[int, str]:
    """(How many bytes this process may use with all that share its limits, what limits it to these, in a few words)."""
    found = {"this machine has no more": all_bytes()}
    if (group := limits().memory) is not None:
        found["a control group"] = group
    if told := _number(SLURM_MEMORY):
        found[SLURM_MEMORY] = told << 20
    if told := _number(SLURM_EACH) * _number(SLURM_CORES):
        found[SLURM_EACH] = told << 20
    return _least(found)


def free_bytes() -> int:
    """How many bytes may still be used, as far as the system says."""
    free = [bytes_and_why()[0], _available()]
    if (left := limits().left) is not None:
        free.append(left)
    return min(free)


def _available() -> int:
    try:
        rows = (row.split() for row in MEMINFO.read_text(encoding="utf-8").splitlines())
        return next(1024 * int(row[1]) for row in rows if row[0] == "MemAvailable:")
    except (OSError, ValueError, IndexError, StopIteration):
        return all_bytes()


def _number(variable: str) -> int:
    """0 if it holds none."""
    told = os.environ.get(variable, "")
    return int(told) if told.isdecimal() else 0


def _least(found: dict[str, int]) -> tuple[int, str]:
    why = min(found, key=found.__getitem__)
    return found[why], why


@dataclass(frozen=True)
class Limits:
    """What a container or the like may use at most; None where there is no limit."""

    cores: float | None
    memory: int | None
    """Bytes."""
    left: int | None = None
    """Bytes that are left of it."""


def limits(groups: Path = GROUPS, mine: Path = MINE) -> Limits:
    """Of the control groups that this process is in, and of those around them."""
    try:
        lines = [line.split(":", 2) for line in mine.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return Limits(None, None)
    cores, memory = list[float](), list[tuple[int, int]]()
    for _, names, path in (line for line in lines if len(line) == 3):
        kinds = names.split(",")
        for folder in _folders(groups, names, path):
            if not names:
                cores += _share(_words(folder / "cpu.max"))
                memory += _room(folder, "memory.max", "memory.current", "inactive_file")
            if "cpu" in kinds:
                cores += _share([*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")])
            if "memory" in kinds:
                memory += _room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    most, left = zip(*memory, strict=True) if memory else ((), ())
    return Limits(min(cores, default=None), min(most, default=None), min(left, default=None))


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


def _room(folder: Path, most: str, used: str, cached: str) -> list[tuple[int, int]]:
    """(Bytes at most, bytes of these that are left) by such files; what only keeps files at hand is left, too."""
    limit, use = _count(_words(folder / most)), _count(_words(folder / used))
    stat = _words(folder / "memory.stat")
    files = sum(sum(_count([value])) for name, value in zip(stat[::2], stat[1::2], strict=False) if name == cached)
    return [(each, max(0, each - max(0, sum(use) - files))) for each in limit]


def _count(words: list[str]) -> list[int]:
    return [int(word) for word in words[:1] if word.isdecimal() and int(word) < _UNLIMITED]
