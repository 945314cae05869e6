"""Runs that are killed and resumed come out as if nothing had happened: real processes, real SIGKILLs."""

import importlib
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.repository import ROOT

KILLS = 35
SMALL = {"rounds": "6", "dataset.train_limit": "200", "dataset.test_limit": "50"}
"""Shorter runs than the script's: they record as often for each step."""
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "kills.py"))
CASES = [*SCRIPT["CASES"]]


def small(words: list[str]) -> list[str]:
    """The same settings, with a few others' values."""
    pairs = dict(word.split("=", 1) for word in words)
    assert pairs.keys() >= SMALL.keys()
    return [f"{key}={value}" for key, value in (pairs | SMALL).items()]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)), ids=CASES)
def test_killed_runs_come_out_as_if_they_had_not_been(
    case: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork: Any = SCRIPT["fork"]
    monkeypatch.setitem(SCRIPT["undisturbed"].__globals__, "COMMON", small(SCRIPT["COMMON"]))
    if CASES[case] != "fedagg":  # once with the figures, which take as long as all the rest
        monkeypatch.setattr("fedkeel.report.curves.learning_curves", lambda _, paths: [path.touch() for path in paths])
    whole = SCRIPT["undisturbed"](CASES[case], tmp_path, fork)
    for number in range(case, KILLS, len(CASES)):
        where, wrong = SCRIPT["one_kill"](whole, number, 0, fork)
        assert not wrong, f"kill {number}, {where}: {wrong}"


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize("kind", ["node", "serverapp"])
def test_killed_deployments_are_completed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    script: Any = importlib.import_module("kill_deployments")
    whole = script.supposed("scaffold", tmp_path, fast=True)
    killed = script.one_kill(whole, 0, 0, kind, busy=kind == "node")
    assert not killed.wrong, f"{kind}, {killed.stage}: {killed.wrong}"
