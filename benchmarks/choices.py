"""How steady the choice of an executor is: which one, how often, how long choosing takes, and how much it matters.

python benchmarks/choices.py [--only W1,W2] [--times 10] [--rounds 5] [--json FILE]

Each choice is made in a process of its own, which has forgotten all earlier ones (a cache folder of its own, not the
user's). Its seconds are those that a run spends on choosing, without the start of Python and the data. Then all that
were chosen train the same rounds in turns: how far apart they are is what an unsteady choice costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from speed import compact, machine, now
from workloads import ALL, WORKLOADS, Workload, add_choice, fresh_choices

from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings
from fedkeel.params import FlatModel
from fedkeel.runner.choice import choose
from fedkeel.runner.prepare import prepare
from fedkeel.runner.simulation import Simulation
from fedkeel.runner.threads import threads

HORIZON = 100
"""Rounds of the run that is chosen for: for a short one less time is spent."""
Row = dict[str, Any]


def choice(name: str) -> Row:
    """One, in this process."""
    workload = ALL[name]
    experiment, data, module = prepare(workload.experiment(HORIZON), workload.data())
    rule, _ = experiment.algorithm.rules()
    flat = FlatModel(module)
    workshop = Workshop(module, data, rule, experiment.local, experiment.seed)
    with threads(experiment.threads):
        began = time.perf_counter()
        chosen = choose(experiment, workshop, flat)
        seconds = time.perf_counter() - began
    return {"executor": chosen.settings.model_dump(), "seconds": seconds, "probe": chosen.seconds}


def another(name: str) -> Row:
    """One, in a process that remembers nothing."""
    with fresh_choices():
        command = [sys.executable, __file__, "--one", name]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: Row = json.loads(told.strip().splitlines()[-1])
    return found


def race(workload: Workload, ways: list[Row], rounds: int) -> list[float]:
    """Median seconds of a round with each, in turns; the first one warms up."""
    data = workload.data()
    taken: list[list[float]] = [[] for _ in ways]
    runs, executors = [], []
    for way in ways:
        experiment, data, module = prepare(workload.experiment(rounds + 2), data)
        rule, _ = experiment.algorithm.rules()
        workshop = Workshop(module, data, rule, experiment.local, experiment.seed)
        executors.append(workshop.executor(ExecutorSettings(**way)))
        experiment = experiment.replace(executor=ExecutorSettings(**way))
        runs.append(Simulation(experiment, data, FlatModel(module), executors[-1]).rounds())
    with threads(experiment.threads):
        for _ in range(rounds + 1):
            for each, seconds in zip(runs, taken, strict=True):
                seconds.append(next(each).seconds)
    for executor in executors:
        executor.close()
    return [statistics.median(seconds[1:]) for seconds in taken]


def measure(workload: Workload, times: int, rounds: int) -> Row:
    found = [another(workload.name) for _ in range(times)]
    counts = Counter(json.dumps(each["executor"]) for each in found).most_common()
    ways = [json.loads(text) for text, _ in counts]
    taken = race(workload, ways, rounds)
    seconds = [each["seconds"] for each in found]
    return {
        "workload": workload.name,
        "about": workload.about,
        "chosen": [
            {"executor": way, "times": count, "seconds_per_round": each}
            for way, (_, count), each in zip(ways, counts, taken, strict=True)
        ],
        "median_seconds": statistics.median(seconds),
        "max_seconds": max(seconds),
        "apart": max(taken) / min(taken),
        "choices": found,
    }


def told(row: Row) -> str:
    """A workload's choices in a few lines."""
    lines = [
        f"{row['workload']} {row['about']}: chosen in {row['median_seconds']:.2f} s (median), "
        f"{row['max_seconds']:.2f} s at most; rounds {row['apart']:.2f} times apart"
    ]
    lines += [
        f"  {each['times']:3} x {compact(each['executor'])}: {1e3 * each['seconds_per_round']:.1f} ms a round"
        for each in row["chosen"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser, list(WORKLOADS))
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5, help="of each executor that was chosen, to compare them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(choice(options.one)))
        return
    rows = []
    for name in options.only:
        rows.append(measure(ALL[name], options.times, options.rounds))
        print(told(rows[-1]), flush=True)
    if options.json:
        report = {"date": now(), "machine": machine(), "times": options.times, "workloads": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
