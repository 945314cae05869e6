"""What each method costs beside FedAvg: seconds a round for the same number of gradients, in turns in one process.

python benchmarks/methods.py [W1 W2 W3] [--repeat 9] [--json FILE]

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

from fedkeel.algorithms import methods
from fedkeel.experiment import Experiment
from fedkeel.local.build import Workshop
from fedkeel.params import FlatModel
from fedkeel.prepare import prepare
from fedkeel.runtime import Simulation

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

    def round(self) -> None:
        self.seconds.append(next(self._rounds).seconds)


def measure(workload: Workload, names: Sequence[str], repeat: int) -> list[dict[str, Any]]:
    contenders = {name: Contender(workload, name, repeat + 2) for name in names}
    for _ in range(repeat + 1):  # the first warms up; nobody reaches the last, which would be tested
        for contender in contenders.values():
            contender.round()
    base = np.array(contenders["fedavg"].seconds[1:])
    rows = []
    for name, contender in contenders.items():
        each = np.array(contender.seconds[1:])
        gradients = GRADIENTS.get(name, 1.0)
        ratio = float(each.min() / base.min() / gradients)  # the machine is shared: the best round is least disturbed
        rows.append({"method": name, "seconds": float(each.min()), "gradients": gradients, "ratio": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3"])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    report = {}
    for name in given.workloads:
        workload = WORKLOADS[name]
        unfit = {"fedbabu", "moon"} if workload.model == "linear" else set()  # they need a body
        rows = measure(workload, [each for each in methods() if each not in unfit], given.repeat)
        report[name] = rows
        print(f"{name} {workload.about}\n| method | ms of the best round | gradients | ratio to FedAvg, per gradient |")
        print("|---|--:|--:|--:|")
        for row in sorted(rows, key=lambda row: row["ratio"]):
            cells = row["method"], f"{row['seconds'] * 1e3:.0f}", f"{row['gradients']:.2f}", f"{row['ratio']:.2f}"
            print(f"| {' | '.join(cells)} |")
        print(flush=True)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
