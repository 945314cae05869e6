"""What the system lets this process use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkeel.local import machine
from fedkeel.local.machine import Limits, limits


def groups(root: Path, mine: str, files: dict[str, str]) -> Limits:
    (root / "mine").write_text(mine)
    for name, text in files.items():
        (root / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "cgroup" / name).write_text(text)
    return limits(root / "cgroup", root / "mine")


@pytest.mark.parametrize(
    ("mine", "files", "found"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n", "memory.max": "1073741824\n"}, (1.5, 1 << 30, 1 << 30)),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, (None, None)),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "200000 100000\n"}, (0.5, None)),
        ("0::/a/b\n", {"a/memory.max": "2000\n", "memory.max": "1000\n"}, (None, 1000, 1000)),
        (
            "0::/a/b\n",
            {
                "memory.max": "9000\n",
                "memory.current": "8500\n",
                "memory.stat": "anon 8000\nfile 500\ninactive_file 200\n",
                "a/memory.max": "2000\n",
                "a/memory.current": "500\n",
            },
            (None, 2000, 700),
        ),
        ("0::/\n", {"memory.max": "1000\n", "memory.current": "1200\n", "memory.stat": ""}, (None, 1000, 0)),
        (
            "4:memory:/job\n2:cpu,cpuacct:/\n0::/\n",
            {
                "memory/job/memory.limit_in_bytes": "5000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "memory/job/memory.usage_in_bytes": "4000\n",
                "memory/job/memory.stat": "cache 900\ninactive_file 1\ntotal_inactive_file 600\n",
            },
            (3.0, 5000, 1600),
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, (None, None)),
        ("1:cpuset:/\nnonsense\n", {"cpu.max": "1 1\n"}, (None, None)),
        ("0::/\n", {"cpu.max": "", "memory.max": "many\n"}, (None, None)),
        ("0::/not/mounted/here\n", {"cpu.max": "100000 100000\n"}, (1.0, None)),
    ],
)
def test_limits_of_control_groups(mine: str, files: dict[str, str], found: tuple[Any, ...], tmp_path: Path) -> None:
    assert groups(tmp_path, mine, files) == Limits(*found)


def test_a_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert limits(tmp_path, tmp_path / "nothing") == Limits(None, None)


@pytest.mark.parametrize(
    ("group", "slurm", "most", "free"),
    [
        (Limits(None, None), {}, (24_000 << 20, "this machine has no more"), 9_000 << 20),
        (Limits(None, 8_000 << 20, 5_000 << 20), {}, (8_000 << 20, "a control group"), 5_000 << 20),
        (Limits(None, 8_000 << 20), {"MEM_PER_NODE": 4000}, (4_000 << 20, "SLURM_MEM_PER_NODE"), 4_000 << 20),
        (Limits(None, None), {"MEM_PER_NODE": 16_000}, (16_000 << 20, "SLURM_MEM_PER_NODE"), 9_000 << 20),
        (Limits(None, None), {"MEM_PER_NODE": 0}, (24_000 << 20, "this machine has no more"), 9_000 << 20),
        (Limits(None, None), {"MEM_PER_CPU": 500, "CPUS_ON_NODE": 2}, (1_000 << 20, "SLURM_MEM_PER_CPU"), 1_000 << 20),
    ],
)
def test_how_much_memory_this_process_may_use(
    group: Limits, slurm: dict[str, int], most: tuple[int, str], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "limits", lambda: group)
    monkeypatch.setattr(machine, "all_bytes", lambda: 24_000 << 20)
    monkeypatch.setattr(machine, "_available", lambda: 9_000 << 20)
    for name in ("MEM_PER_NODE", "MEM_PER_CPU", "CPUS_ON_NODE"):
        monkeypatch.setenv(f"SLURM_{name}", str(slurm.get(name, "")))
    assert machine.bytes_and_why() == most
    assert machine.free_bytes() == free


def test_what_the_system_says_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "limits", lambda: Limits(None, None))
    for name in (machine.SLURM_MEMORY, machine.SLURM_EACH):
        monkeypatch.delenv(name, raising=False)
    assert 10**8 < machine.free_bytes() < 10**14
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    without = machine.free_bytes()
    assert 10**8 < without < 10**14
    for content in ("", "MemAvailable:", "MemAvailable: x kB\n", "\n\n"):
        (tmp_path / "meminfo").write_text(content)
        assert machine.free_bytes() == without
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  7 kB\n")
    assert machine.free_bytes() == 7 * 1024


def test_the_processors_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some: thing 3000 \nprocessor\t: 1\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.processor() == "Some: thing 3000"
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "nothing")
    monkeypatch.setattr("platform.processor", lambda: "aarch64")
    assert machine.processor() == "aarch64"
