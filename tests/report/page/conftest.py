"""Comparisons that reports are made of: a small real one, and larger ones whose run folders are written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import api
from fedkeel.runner.prepare import federate
from fedkeel.study.plan import Case, Comparison, Measure, cross
from fedkeel.study.results import Results, collect
from fedkeel.study.store import Store

BASE: dict[str, Any] = {
    "clients": 6,
    "per_round": 3,
    "rounds": 3,
    "dataset": {"train_limit": 240, "test_limit": 60},
    "local": {"epochs": 2, "lr": 0.05},
    "partition": {"kind": "dirichlet"},
    "model": {"name": "linear"},
    "executor": {"kind": "serial"},
}
DEVICES = ["fleet.speed_ratio=5", "fleet.dropout=0.2", "fleet.uplink_mbps=2", "fleet.downlink_mbps=10"]
METHODS = {name: [f"algorithm={name}"] for name in ("fedavg", "fedagg", "fedasmu")}
COMMAND = "fedkeel compare fedavg fedagg fedasmu --seeds 0-1"


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Three methods, one of them asynchronous, with two seeds each, really run."""
    store = tmp_path_factory.mktemp("compared") / "store"
    scenes = {"": [*DEVICES, "evaluate_clients=true"]}
    measure = Measure(target=0.2, reference="fedavg")
    plan = Comparison("Three methods", cross(BASE, scenes, METHODS, [0, 1]), measure, COMMAND)
    Store(store).keep(plan)
    for case in plan.cases:
        api.run(case.experiment, Store(store).folder(case.name))
    return collect(plan, store)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Results]:
    """Makes a comparison whose run folders are written by hand."""

    def make(
        variants: Sequence[str],
        scenes: Sequence[str] = ("",),
        seeds: Sequence[int] = range(5),
        rounds: int = 20,
        jobs: int = 60,
        **settings: Any,
    ) -> Results:
        store = Store(tmp_path_factory.mktemp("written") / "store")
        plan = Comparison(
            settings.pop("title", "Written by hand"),
            cross(
                {**BASE, "rounds": rounds, **settings}, dict.fromkeys(scenes, ()), dict.fromkeys(variants, ()), seeds
            ),
            Measure(target=0.5, reference=variants[0]),
            "fedkeel compare",
        )
        store.keep(plan)
        for case in plan.cases:
            place = list(variants).index(case.variant) + len(variants) * list(scenes).index(case.scene)
            _write(store.folder(case.name), case, place, rounds, jobs)
        return collect(plan, store.path)

    return make


def _write(folder: Path, case: Case, place: int, rounds: int, jobs: int) -> None:
    rng = np.random.default_rng([case.seed, place])
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text(case.experiment.to_yaml())
    _rows(folder / "history.jsonl", [_evaluation(n, rounds, place, rng) for n in range(1, rounds + 1)])
    _rows(folder / "clients.jsonl", [_arrival(n, jobs, rounds, rng) for n in range(jobs)])
    (folder / "labels.json").write_text(json.dumps(federate(case.experiment).describe_labels()))
    spread = {"mean": 0.6, "std": 0.1, "worst_decile": 0.4}
    (folder / "summary.json").write_text(json.dumps({"virtual_seconds": 40.0 * rounds, "client_accuracy": spread}))


def _rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _evaluation(number: int, rounds: int, place: int, rng: np.random.Generator) -> dict[str, Any]:
    accuracy = (0.9 - 0.02 * place) * (1 - np.exp(-4 * number / rounds)) + 0.01 * rng.normal()
    return {
        "round": number,
        "version": number,
        "virtual_seconds": 40.0 * number + rng.random(),
        "wall_seconds": 1.0,
        "accuracy": float(np.clip(accuracy, 0, 1)),
        "loss": float(2.3 - 2 * accuracy),
        "train_loss": float(2.2 - 2 * accuracy + 0.05 * rng.normal()),
        "bytes_up": 1_000_000 * number,
        "bytes_down": 2_000_000 * number,
        "updates": 10 * number,
    }


def _arrival(number: int, jobs: int, rounds: int, rng: np.random.Generator) -> dict[str, Any]:
    begin = 40.0 * rounds * number / jobs
    return {
        "client": int(rng.integers(40)),
        "round": 1 + number * rounds // jobs,
        "staleness": int(rng.integers(12)),
        "learning_rates": [float(rate) for rate in 0.1 * rng.random(3)],
        "weight": float(rng.random()),
        "accepted": bool(rng.random() < 0.9),
        "dispatched": begin,
        "began": begin + 1,
        "finished": begin + 5 + 20 * float(rng.random()),
        "arrived": begin + 30,
    }
