"""Runs that are told to a tracker, and what it should have of them: read from the run folder, name by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from fedkeel import Experiment, RoundEnd, Sink
from fedkeel.local.executors import choose
from tests.helpers import federation
from tests.helpers.folders import faulty, rows

Curves = dict[str, list[tuple[int, float]]]
EVALUATED = (
    "version", "virtual_seconds", "wall_seconds", "accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "updates",
)  # fmt: skip


class Killed(Sink):
    """Ends a run at once, without a checkpoint."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, end: RoundEnd) -> None:
        if end.round == self.after:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def given() -> dict[str, Any]:
    return {"data": federation.data(), "model": federation.net(4)}


@pytest.fixture
def described() -> Experiment:
    """Five rounds, tested in every other one; the method reports numbers."""
    return faulty("fedlga", "serial", evaluate_every=2, checkpoint={"rounds": 2}, wire=["cast"])


@pytest.fixture
def killed() -> Callable[[int], Sink]:
    return Killed


@pytest.fixture
def expected() -> Callable[[Path], Curves]:
    return curves


def curves(folder: Path) -> Curves:
    """The points of every curve, without the summary."""
    found: Curves = {}
    for group, round, told in _told(folder):
        for name, value in told.items():
            if value is not None:
                found.setdefault(f"{group}/{name}", []).append((round, value))
    return found


def _told(folder: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    arrivals = iter(rows(folder, "clients"))
    for row in rows(folder, "rounds"):
        own = [next(arrivals) for _ in range(row["arrived"])]
        rates = [mean(each["learning_rates"]) for each in own]
        means = {"learning_rate": mean(rates), "staleness": mean(each["staleness"] for each in own)} if own else {}
        told = {name: row.pop(name) for name in ("train_loss", "arrived", "lost", "refused")}
        round = row.pop("round")
        yield "rounds", round, told | means
        yield "method", round, {name: value for name, value in row.items() if isinstance(value, int | float)}
    for row in rows(folder, "history"):
        yield "history", row["round"], {name: row.get(name) for name in EVALUATED}


@pytest.fixture
def summary() -> Callable[[Path], dict[str, Any]]:
    return lambda folder: json.loads((folder / "summary.json").read_text())
