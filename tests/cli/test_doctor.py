"""`fedkeel doctor`: what it finds, and how it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel
from fedkeel.cli import checks
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.local import machine
from fedkeel.local.executors import processes
from fedkeel.local.machine import Limits
from fedkeel.local.native import library
from tests.helpers.commands import fedkeel as command
from tests.helpers.commands import in_a_process

ITEMS = [
    "Python", "fedkeel", "torch", "processor", "cores", "memory", "native kernels", "C++ compiler", "worker processes",
    "data cache", "executor choices", *checks.EXTRAS,
]  # fmt: skip
Doctor = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def _usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no wishes, enough of everything, and no library."""
    for name in (
        "FEDKEEL_NATIVE",
        "FEDKEEL_ISA",
        "CXX",
        machine.SLURM,
        machine.SLURM_MEMORY,
        machine.SLURM_EACH,
        machine.OURS,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "limits", lambda: Limits(None, None))
    monkeypatch.setattr(machine, "_available", lambda: 8 * 10**9)
    monkeypatch.setattr(library, "FOLDER", tmp_path / "lib")


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    def ask(code: int = 0, **env: str) -> dict[str, dict[str, Any]]:
        done = command("doctor", "--json", cwd=tmp_path, env=env)
        assert (done.returncode, done.stderr) == (code, "")
        return {row["item"]: row for row in json.loads(done.stdout)}

    return ask


def loaded(monkeypatch: pytest.MonkeyPatch, isa: str, built: tuple[str, ...], offered: tuple[str, ...]) -> None:
    found = library.Library(None, isa, Path("lib.so"))  # type: ignore[arg-type]
    for name, value in (("load", found), ("built", built), ("offered", offered)):
        monkeypatch.setattr(library, name, lambda value=value: value)


def test_one_line_for_each_item(tmp_path: Path) -> None:
    done = command("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line[:16].strip() for line in lines] == ITEMS
    assert {line[18:27].strip() for line in lines} <= {"ok", "optional", "warning"}
    assert lines[0] == f"{'Python':<18}{'ok':<10}{sys.version.split()[0]} ({sys.executable})"


def test_the_same_for_programs(doctor: Doctor) -> None:
    found = doctor()
    assert [*found] == ITEMS
    assert all({*row} == {"item", "verdict", "found", "values"} for row in found.values())
    assert found["torch"]["values"] == {"version": torch.__version__, "threads": 1, "cuda": torch.cuda.is_available()}
    assert found["fedkeel"]["values"]["path"] == str(Path(fedkeel.__file__).parent)
    assert found["cores"]["values"]["usable"] == len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_as_a_user_starts_it(tmp_path: Path) -> None:
    done = in_a_process("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "broken" not in done.stdout


# Native kernels.


def test_without_kernels_it_says_why_and_what_to_do(doctor: Doctor) -> None:
    row = doctor()["native kernels"]
    assert row["verdict"] == "warning"
    assert row["found"].startswith("there are no native kernels: they were not built; with a C++ compiler, run make ")
    assert row["values"]["loaded"] is None
    assert row["values"]["mode"] == "auto"


def test_required_and_absent_is_broken(doctor: Doctor) -> None:
    row = doctor(1, FEDKEEL_NATIVE="require")["native kernels"]
    assert row["verdict"] == "broken"
    assert row["found"].startswith("FEDKEEL_NATIVE=require cannot be met: there are no native kernels")


def test_a_wish_that_is_not_understood_is_broken(doctor: Doctor) -> None:
    assert "got 'often'" in doctor(1, FEDKEEL_NATIVE="often")["native kernels"]["found"]


def test_switched_off(doctor: Doctor) -> None:
    assert "switched off" in doctor(FEDKEEL_NATIVE="no")["native kernels"]["found"]


def test_the_library_that_is_loaded(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, "avx2", ("avx2", "base"), ("avx2", "base"))
    row = doctor()["native kernels"]
    assert (row["verdict"], row["found"]) == ("ok", "avx2 (built: avx2, base; this processor has: avx2, base)")
    assert row["values"]["loaded"] == "avx2"


def test_a_better_one_that_was_not_built(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, "base", ("base",), ("avx2", "base"))
    row = doctor()["native kernels"]
    assert row["verdict"] == "warning"
    assert "; for avx2: with a C++ compiler, run make native in " in row["found"]
    assert doctor(FEDKEEL_ISA="base")["native kernels"]["verdict"] == "ok"  # as it was asked for


def test_compilers(doctor: Doctor, tmp_path: Path) -> None:
    row = doctor(PATH=str(tmp_path))["C++ compiler"]
    assert (row["verdict"], row["values"]) == ("optional", {"command": None})
    row = doctor(CXX="/nowhere/g++ -O0")["C++ compiler"]
    assert row["verdict"] == "warning"
    assert row["found"].startswith("/nowhere/g++ -O0 cannot be used (")
    assert doctor(CXX="false")["C++ compiler"]["found"] == "false: it ended with code 1"
    assert doctor(CXX="echo 12.2")["C++ compiler"]["found"] == "echo 12.2: 12.2 --version"


# The machine.


def test_a_tight_limit_is_told(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(machine, "limits", lambda: Limits(2.5, 500_000_000))
    found = doctor()
    assert (found["cores"]["verdict"], found["cores"]["found"]) == ("ok", "2 of 16 can be used, by a control group")
    assert found["memory"]["verdict"] == "warning"
    assert found["memory"]["found"].endswith("; a control group allows 0.5 GB; large models will not fit")
    monkeypatch.setattr(machine, "limits", lambda: Limits(8.0, 10**10))
    found = doctor()
    assert found["cores"]["verdict"] == found["memory"]["verdict"] == "ok"


def test_no_workers(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "unavailable", lambda: "workers need Linux")
    row = doctor()["worker processes"]
    assert (row["verdict"], row["found"]) == ("warning", "cannot be started: workers need Linux")


def test_a_broken_torch_is_a_line_among_others(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = doctor(1)
    assert [*found] == ITEMS
    assert (found["torch"]["verdict"], found["Python"]["verdict"]) == ("broken", "ok")
    assert found["torch"]["found"].startswith("ModuleNotFoundError: ")


# Folders and packages.


def test_the_cache(doctor: Doctor, tmp_path: Path) -> None:
    row = doctor()["data cache"]
    assert (row["verdict"], row["found"]) == ("ok", f"{tmp_path / 'cache'}, 0.0 MB: no data sets")
    assert not (tmp_path / "cache").exists()  # it only looks
    for file in ENTRIES["mnist"].layouts[0].files:
        path = tmp_path / "cache" / "mnist" / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(500_000))
    (tmp_path / "cache" / "cifar10").mkdir()  # with nothing in it
    (tmp_path / "cache" / "executors").mkdir()
    (tmp_path / "cache" / "executors" / "1.json").touch()
    found = doctor()
    assert found["data cache"]["found"] == f"{tmp_path / 'cache'}, 2.0 MB: mnist"
    assert found["data cache"]["values"]["data_sets"] == ["mnist"]
    assert found["executor choices"]["found"] == f"{tmp_path / 'cache' / 'executors'}, 1 choice remembered"


def test_a_cache_that_cannot_be_written(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    row = doctor(FEDKEEL_DATA=str(tmp_path / "file" / "below"))["data cache"]
    assert row["verdict"] == "warning"
    assert row["found"].endswith("it cannot be written to, so set FEDKEEL_DATA to another folder to get more data sets")


def test_packages(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "ray":
            return "2.9"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    found = doctor()
    assert (found["ray"]["verdict"], found["ray"]["found"]) == ("ok", "2.9")
    assert (found["optuna"]["verdict"], found["optuna"]["found"]) == ("optional", "not installed")
    assert found["fedkeel"]["found"].endswith(", not installed, but found on Python's path")
    assert found["fedkeel"]["verdict"] == "ok"
    monkeypatch.setattr(metadata, "version", lambda _: "0.0.1")
    assert doctor()["fedkeel"]["verdict"] == "warning"
    assert doctor()["fedkeel"]["found"].endswith(", but version 0.0.1 is installed; install it again")
