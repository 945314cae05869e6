"""What each method costs beside FedAvg: seconds a round for the same number of gradients, in turns in one process.

python benchmarks/methods.py [W1 W2 W3] [--repeat 9] [--json FILE]
python benchmarks/methods.py --from benchmarks/results/methods.json       # the table of docs/algorithms/baselines.md

A gradient is one forward and backward pass; a pass that is only forward counts a third. The executor is the same for
all methods: one client after the other for convolutions, small stacks for fully connected networks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workloads import WORKLOADS, Workload

from fedkeel.config.experiment import Experiment
from fedkeel.local.build import Workshop
from fedkeel.methods import methods
from fedkeel.params import FlatModel
from fedkeel.runner.prepare import prepare
from fedkeel.runner.simulation import Simulation

GRADIENTS = {"fedsam": 2.0, "mofedsam": 2.0, "mimelite": 2.0, "moon": 1 + 2 / 3, "fedgh": 1 + 1 / 3}
"""Of a local epoch, where it is not one: a second one (FedSAM), all data once more, or only forward."""
STACKS = {"linear": 5, "mlp-400": 2}
"""Clients at once: what `auto` chooses with two workers, or near it."""


class Contender:
    """A method whose rounds can be run one at a time."""

    def __init__(self, workload: Workload, name: str, rounds: int) -> None:
        stack = STACKS.get(workload.model, 0)
        executor = {"kind": "vectorised" if stack else "serial", "stack": stack, "channels_last": not stack}
        settings = [f"algorithm.name={name}", *(f"executor.{k}={json.dumps(v)}" for k, v in executor.items())]
        experiment: Experiment = workload.experiment(rounds, settings)
        experiment, data, module = prepare(experiment, workload.data(), None)
        rule, _ = experiment.algorithm.rules()
        flat = FlatModel(module)
        workshop = Workshop(module, data, rule, experiment.local, experiment.seed)
        self._simulation = Simulation(experiment, data, flat, workshop.executor(experiment.executor))
        self._rounds = self._simulation.rounds()
        self.seconds: list[float] = []

    def round(self) -> float:
        self.seconds.append(next(self._rounds).seconds)
        return self.seconds[-1]


def measure(workload: Workload, names: Sequence[str], repeat: int) -> list[dict[str, Any]]:
    """Every round right behind one of FedAvg's: what disturbs the machine disturbs both."""
    base = Contender(workload, "fedavg", len(names) * (repeat + 1) + 1)
    contenders = {name: Contender(workload, name, repeat + 2) for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeat + 1):
        for name, contender in contenders.items():
            ratios[name].append(1 / base.round() * contender.round())
    rows = []
    for name, contender in contenders.items():
        gradients = GRADIENTS.get(name, 1.0)
        ratio = float(np.median(ratios[name][1:]) / gradients)  # the first round warms up
        seconds = float(np.median(contender.seconds[1:]))
        rows.append({"method": name, "seconds": seconds, "gradients": gradients, "ratio": ratio})
    return rows


def table(report: dict[str, list[dict[str, Any]]]) -> str:
    """Ratios, a row a method."""
    ratios = {name: {row["method"]: row["ratio"] for row in rows} for name, rows in report.items()}
    lines = [
        "| | " + " | ".join(f"{name}: {WORKLOADS[name].about}" for name in report) + " |",
        "|---|" + "--:|" * len(report),
    ]
    for each in methods():
        cells = (f"{ratios[name][each]:.2f}" if each in ratios[name] else "" for name in report)
        lines.append(f"| {each} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3"])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--from", dest="known", type=Path, help="only print the table of figures written before")
    given = parser.parse_args()
    if given.known:
        print(table(json.loads(given.known.read_text())))
        return
    torch.set_num_threads(1)
    report = {}
    for name in given.workloads:
        workload = WORKLOADS[name]
        unfit = {"fedbabu", "moon"} if workload.model == "linear" else set()  # they need a body
        names = [name for name, each in methods().items() if each.server.pace == "barrier" and name not in unfit]
        report[name] = measure(workload, names, given.repeat)
        print(table({name: report[name]}) + "\n", flush=True)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
