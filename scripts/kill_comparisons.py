"""What `kills.py --compare` kills: a comparison of runs in worker processes, with executors that are settled first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import kills

from fedkeel.cli import compare, outcome, studying
from fedkeel.record.folder import begun, complete

LOADED = (compare, outcome, studying)  # beforehand: what is forked has them
PLAN, RUNS, TABLES, REPORT = "comparison.json", "runs", ("table.csv", "runs.csv"), "report.html"
STUDY = {
    "base": {
        "model": "linear",
        "dataset": {"train_limit": 300, "test_limit": 100},
        "partition": "dirichlet",
        "clients": 8,
        "per_round": 4,
        "rounds": 12,
        "local": {"epochs": 2},
        "fleet": {"speed_ratio": 5},
        "checkpoint": {"rounds": 1},
    },
    "variants": {
        "plain": [],
        "workers": ["algorithm=fedprox", *kills.WORKERS],
        "asynchronous": ["algorithm=fedasmu"],
        "diverging": ["local.lr=1.0e+38"],
    },
    "seeds": [0, 1],
}


def comparison(root: Path, start: kills.Start) -> kills.Whole:
    """Run one from its beginning to its end."""
    os.environ["FEDKEEL_DATA"] = str(root / "cache")  # executors are settled once, and for these alone
    study = root / "study.yaml"
    study.write_text(json.dumps(STUDY))
    kind = kills.Kind("--out", RUNS, REPORT, stage, differences)
    return kills.measured(kind, ["compare", str(study), "--jobs", "2"], root / "comparison", start)


def stage(folder: Path) -> str:
    """How far a killed comparison had come."""
    if not (folder / PLAN).exists():
        return "before the plan was written"
    runs = [*(folder / RUNS).iterdir()] if (folder / RUNS).exists() else []
    if not runs:
        return "while executors were settled"
    if (folder / TABLES[0]).exists():
        return "while the report was written"
    failed = {path.stem for path in (folder / "failed").glob("*.json")}
    if any(not complete(run) and begun(run) and run.name not in failed for run in runs):
        return "in mid-run"
    planned = len(STUDY["variants"]) * len(STUDY["seeds"])
    return "between runs" if len(runs) < planned else "before the table was written"


def differences(one: Path, other: Path) -> list[str]:
    """What two comparisons do not have in common: tables byte for byte, runs as when they are killed by themselves."""
    wrong = [f"{name} differs" for name in TABLES if (one / name).read_bytes() != (other / name).read_bytes()]
    for path in sorted((one / RUNS).iterdir()):
        if complete(path):
            wrong += [f"{path.name}: {each}" for each in kills.differences(path, other / RUNS / path.name)]
    left = [str(path) for path in other.rglob("*.partial")]
    return [*wrong, *(f"left over: {path}" for path in left)]
