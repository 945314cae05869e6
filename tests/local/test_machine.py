"""What the system lets this process use."""

from __future__ import annotations

from pathlib import Path

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
        ("0::/\n", {"cpu.max": "150000 100000\n", "memory.max": "1073741824\n"}, (1.5, 1 << 30)),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, (None, None)),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "200000 100000\n"}, (0.5, None)),
        ("0::/a/b\n", {"a/memory.max": "2000\n", "memory.max": "1000\n"}, (None, 1000)),
        (
            "4:memory:/job\n2:cpu,cpuacct:/\n0::/\n",
            {
                "memory/job/memory.limit_in_bytes": "5000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            (3.0, 5000),
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, (None, None)),
        ("1:cpuset:/\nnonsense\n", {"cpu.max": "1 1\n"}, (None, None)),
        ("0::/\n", {"cpu.max": "", "memory.max": "many\n"}, (None, None)),
        ("0::/not/mounted/here\n", {"cpu.max": "100000 100000\n"}, (1.0, None)),
    ],
)
def test_limits_of_control_groups(
    mine: str, files: dict[str, str], found: tuple[float | None, int | None], tmp_path: Path
) -> None:
    assert groups(tmp_path, mine, files) == Limits(*found)


def test_a_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert limits(tmp_path, tmp_path / "nothing") == Limits(None, None)


def test_the_processors_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some: thing 3000 \nprocessor\t: 1\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.processor() == "Some: thing 3000"
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "nothing")
    monkeypatch.setattr("platform.processor", lambda: "aarch64")
    assert machine.processor() == "aarch64"
