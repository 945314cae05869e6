"""Milliseconds of a round beside local training: `python benchmarks/rounds.py [--only PART] [--profile] [--json FILE]`.

The executor is a stub whose results are there at once. What is left is the dispatch, the world, the arrivals, the gate,
the aggregation and the rows of the run folder. The model has the 7,850 weights of `linear` on MNIST. The times are
those of the processor. Other work on the machine changes the minimum least.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData
from fedkeel.local.executor import Score
from fedkeel.params import FlatModel
from fedkeel.record.folder import RunFolder
from fedkeel.runner.folders import subject
from fedkeel.runner.simulation import Simulation
from fedkeel.wire.orders import Order, Trained

FEATURES, CLASSES, WARM = 784, 10, 3
FLEET = {"speed_ratio": 5, "uplink_mbps": 2, "downlink_mbps": 10}
FAULTS = {"lost_upload": 0.05, "twice": 0.05, "old_job": 0.05}
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "10 of 100": (10, 100, {}),
    "1,000 of 1,000": (1000, 1000, {}),
    "1,000 of 10,000": (1000, 10_000, {}),
    "1,000, slow and fast": (1000, 1000, {"fleet": FLEET}),
    "1,000, with faults": (1000, 1000, {"fleet": FLEET, "faults": FAULTS}),
    "1,000, received at once": (1000, 1000, {"fleet": FLEET, "algorithm": "fedasync"}),
}
"""Clients a round, all clients, and more settings."""


class Stub:
    """An executor whose results are there already."""

    def __init__(self, count: int, size: int) -> None:
        rng = np.random.default_rng(0)
        self._made = Trained(
            {
                "w": torch.from_numpy(rng.standard_normal((count, size), dtype=np.float32)),
                "buffers": torch.zeros(count, 0),
                "lr": torch.full((count, 1), 0.05),
                "loss": torch.from_numpy(rng.random(count)),
                "steps": torch.from_numpy(rng.integers(1, 9, count)),
                "finite": torch.ones(count, dtype=torch.bool),
            }
        )

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        count = len(orders)
        return Trained(dict(self._made.columns)) if count == len(self._made.w) else self._made.pick(slice(count))

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None) -> Score:
        return Score(0.5, 1.0)

    def close(self) -> None:
        return


def simulation(per_round: int, clients: int, settings: dict[str, Any]) -> Simulation:
    """One that has many rounds before it."""
    rng = np.random.default_rng(0)
    x = np.zeros((4 * clients, FEATURES), dtype=np.float32)
    data = FederatedData.from_arrays(x, rng.integers(0, CLASSES, len(x)), clients=clients, test=(x[:10], [*range(10)]))
    common = {"clients": clients, "per_round": per_round, "rounds": 10**6, "evaluate_every": 10**6}
    experiment = Experiment(**{"algorithm": "fedavg", "local": {"epochs": 1}, **common, **settings})
    model = FlatModel(nn.Linear(FEATURES, CLASSES))
    return Simulation(experiment, data, model, Stub(per_round, model.layout.size))


def measure(running: Simulation, rounds: int, profile: cProfile.Profile | None) -> dict[str, float]:
    """Milliseconds of so many rounds, their rows included."""
    taken, ends = [], running.rounds()
    with tempfile.TemporaryDirectory() as root, RunFolder.create(Path(root) / "run", subject(running, {})) as folder:
        for number in range(rounds + WARM):
            if profile and number == WARM:
                profile.enable()
            before = process_time()
            end = next(ends)
            between = process_time()
            folder.add(end)
            taken.append((between - before, process_time() - between))
        if profile:
            profile.disable()
    each = np.array(taken[WARM:]) * 1e3
    both = each.sum(1)
    return {"least_ms": float(both.min()), "median_ms": float(np.median(both)), "rows_ms": float(each[:, 1].min())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", default="", help="Cases whose names contain this.")
    parser.add_argument("--profile", action="store_true", help="Where the time goes.")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    told = {}
    print(f"{'clients':<24} {'least ms':>8} {'median':>8} {'of it, rows':>11}")
    for name, (per_round, clients, settings) in CASES.items():
        if asked.only in name:
            profile = cProfile.Profile() if asked.profile else None
            rounds = asked.rounds * (10 if per_round < 100 else 1)
            row = told[name] = measure(simulation(per_round, clients, settings), rounds, profile)
            print(f"{name:<24} {row['least_ms']:>8.3f} {row['median_ms']:>8.3f} {row['rows_ms']:>11.3f}")
            if profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
