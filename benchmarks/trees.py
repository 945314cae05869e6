"""Seconds a round of two versions of fedkeel, round by round in turns: did a change of the code make it slower?

    git worktree add /tmp/before COMMIT
    python benchmarks/trees.py /tmp/before/src src [--rounds 40] [--only fedasync lenet5]

Both versions run the same experiment in processes of their own, and wait for each other between rounds, so that both
meet the same state of the machine. A round is dispatch, training and aggregation, without evaluation. Shown are the
median of the ratios of neighbouring rounds with its quartiles, and the ratio of the fastest rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import warnings
from typing import Any

SERIAL = ["executor.kind=serial", "executor.stack=0", "executor.channels_last=false"]
WORKERS = ["executor.kind=processes", "executor.stack=5", "executor.channels_last=false", "executor.workers=2"]
FLEET = ["clients=200", "per_round=50", "fleet.speed_ratio=5", "model=linear"]
WARM_UP = 3


def stacks(size: int) -> list[str]:
    return ["executor.kind=vectorised", f"executor.stack={size}", "executor.channels_last=false"]


CASES = {
    "linear, 1000 clients, stacks of 50": ["model=linear", "clients=1000", "per_round=1000", "local.batch_size=3",
                                           *stacks(50)],
    "linear, 100 clients, stacks of 5": ["model=linear", "clients=100", "per_round=100", *stacks(5)],
    "linear, 100 clients, two workers": ["model=linear", "clients=100", "per_round=100", *WORKERS],
    "mlp-400, stacks of 2": ["model=mlp-400", *stacks(2)],
    "mlp-400, one by one": ["model=mlp-400", *SERIAL],
    "lenet5, one by one": ["model=lenet5", *SERIAL],
    "scaffold": ["algorithm=scaffold", "model=linear", "clients=100", "per_round=50", *stacks(5)],
    "fedagg": ["algorithm=fedagg", "model=linear", "clients=100", "per_round=50", "local.epochs=2", *stacks(5)],
    "fedasync": ["algorithm=fedasync", *FLEET, *stacks(20)],
    "fedbuff": ["algorithm=fedbuff", *FLEET, *stacks(20)],
    "fedasmu": ["algorithm=fedasmu", "local.epochs=2", *FLEET, *stacks(20)],
}  # fmt: skip


def child(words: list[str], rounds: int) -> None:
    """Run an experiment; after each round, tell its seconds and wait to be told to go on."""
    from fedkeel import Experiment, run

    def told(end: Any) -> None:
        print(end.seconds, flush=True)
        sys.stdin.readline()

    warnings.simplefilter("ignore")
    run(Experiment.load(overrides=[*words, f"rounds={rounds}", f"evaluate_every={rounds}"]), progress=told)


def start(source: str, name: str, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", name, "--rounds", str(rounds)]
    env = {**os.environ, "PYTHONPATH": source}
    return subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def measure(before: str, after: str, name: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each version's rounds, without the first ones."""
    runs = [start(before, name, rounds), start(after, name, rounds)]
    seconds: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            pipe, answers = runs[which].stdin, runs[which].stdout
            assert pipe is not None
            assert answers is not None
            if number:
                pipe.write("go on\n")
                pipe.flush()
            seconds[which].append(float(answers.readline()))
    for each in runs:
        each.communicate("go on\n")
    return seconds[0][WARM_UP:], seconds[1][WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", metavar="SOURCE", help="two folders with a package fedkeel: before, after")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose names contain one of these")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(CASES[asked.child], asked.rounds)
        return
    before, after = asked.trees
    print(f"{'':36} {'before':>10} {'after':>10}   ratio (quartiles)         of the fastest")
    for name in CASES:
        if any(part in name for part in asked.only):
            old, new = measure(before, after, name, asked.rounds)
            ratios = sorted(b / a for a, b in zip(old, new, strict=True))
            low, middle, high = statistics.quantiles(ratios, n=4)
            old_ms, new_ms = (1e3 * statistics.median(each) for each in (old, new))
            print(f"{name:36} {old_ms:7.2f} ms {new_ms:7.2f} ms   {middle:.3f} ({low:.3f} to {high:.3f})   "
                  f"{min(new) / min(old):.3f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
