"""What asynchronous training costs on this machine.

python benchmarks/asynchronous.py cost [W1 W2 W3] [--blocks 6] [--json FILE]   # an update, against a synchronous one
python benchmarks/asynchronous.py scale [--json FILE]                          # 10,000 devices for 100 virtual minutes

`cost` runs FedAvg and the others in turns, a few rounds at a time, on the same fleet (the slowest device five times as
slow as the fastest), and compares seconds per update, all of the server's work included. Updates that arrive one by one
train in whatever stacks are known by then, so seconds are compared over blocks of rounds and not round by round.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workloads import WORKLOADS, Workload

from fedkeel import Experiment, run
from fedkeel.local.build import Workshop
from fedkeel.params import FlatModel
from fedkeel.runner.prepare import prepare
from fedkeel.runner.simulation import Simulation

METHODS = ("fedbuff", "fedasync", "fedasmu", "fedssmu")
ROUNDS = 5
"""Of a block."""
STACKS = {"linear": 5, "mlp-400": 2}
"""Clients at once: what `auto` chose with two workers before there were native kernels, or near it."""
FLEET = ["fleet.speed_ratio=5", "local.epochs=2"]
SCALE = [
    "dataset=mnist", "model=linear", "clients=10000", "per_round=100", "rounds=1000000", "limit_seconds=6000",
    "evaluate_every=20", "local.lr=0.01", "schedule.trigger_seconds=10", *FLEET,
]  # fmt: skip


class Contender:
    """A method whose rounds can be run a few at a time, in worker processes."""

    def __init__(self, workload: Workload, name: str, rounds: int) -> None:
        stack = STACKS.get(workload.model, 0)
        executor = {"kind": "processes", "stack": stack, "channels_last": not stack}
        settings = [f"algorithm.name={name}", *FLEET, *(f"executor.{k}={json.dumps(v)}" for k, v in executor.items())]
        experiment, data, module = prepare(workload.experiment(rounds, settings), workload.data(), None)
        rule, _ = experiment.algorithm.rules()
        workshop = Workshop(module, data, rule, experiment.local, experiment.seed)
        self._executor = workshop.executor(experiment.executor)
        self._rounds = Simulation(experiment, data, FlatModel(module), self._executor).rounds()

    def block(self) -> float:
        """Seconds of an update."""
        ends = [next(self._rounds) for _ in range(ROUNDS)]
        return sum(end.seconds for end in ends) / sum(len(end.arrivals) for end in ends)

    def close(self) -> None:
        self._executor.close()


def cost(workload: Workload, names: Sequence[str], blocks: int) -> list[dict[str, Any]]:
    """Each block right behind one of FedAvg's; the first one warms up."""
    base = Contender(workload, "fedavg", len(names) * (blocks + 1) * ROUNDS + 1)
    rows = []
    for name in names:
        contender = Contender(workload, name, (blocks + 1) * ROUNDS + 1)
        pairs = [(base.block(), contender.block()) for _ in range(blocks + 1)][1:]
        contender.close()
        ratios = [mine / other for other, mine in pairs]
        rows.append(
            {
                "method": name,
                "milliseconds": 1e3 * float(np.median([mine for _, mine in pairs])),
                "fedavg_milliseconds": 1e3 * float(np.median([other for other, _ in pairs])),
                "ratio": float(np.median(ratios)),
                "ratios": ratios,
            }
        )
    base.close()
    return rows


def cost_table(report: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["| | " + " | ".join(f"{n}: {WORKLOADS[n].about}" for n in report) + " |", "|---|" + "--:|" * len(report)]
    for place, name in enumerate(METHODS):
        cells = []
        for rows in report.values():
            row = rows[place]
            cells.append(f"{row['milliseconds']:.2f} ms, {row['ratio']:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def scale() -> dict[str, Any]:
    """The whole run, start and evaluations included."""
    result = run(Experiment.load(None, [*SCALE, "algorithm=fedasmu"]))
    summary = result.summary
    keys = ("virtual_seconds", "updates", "rounds", "wall_seconds", "final_accuracy", "executor")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {**{key: summary[key] for key in keys}, "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "scale"])
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3"])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    if given.what == "scale":
        report = scale()
        print(json.dumps(report, indent=1))
    else:
        for name in given.workloads:
            report[name] = cost(WORKLOADS[name], METHODS, given.blocks)
            print(cost_table({name: report[name]}) + "\n", flush=True)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
