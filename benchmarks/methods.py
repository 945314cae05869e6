"""What a gradient costs with each method, against FedAvg's, in turns in one process.

python benchmarks/methods.py [W1 W2] [--only fedsam,moon] [--repeat 5] [--set executor.native=false] [--json FILE]
python benchmarks/methods.py --from benchmarks/results/methods.json       # the table of docs/benchmarks.md

Every method runs as `executor: auto` would have it, on a fleet whose slowest device is five times as slow as the
fastest. Blocks of a few rounds follow blocks of FedAvg's; the first ones warm up. Of each pair the seconds a gradient
are compared, with all of the server's work; shown is the median of the ratios.

Gradients are counted, not assumed: a few rounds are run beforehand in one thread, in which whatever computes gradients
is watched. A gradient is one sample forward and backward; what goes forward only (MOON's features, FedGH's class means,
losses that FedASMU looks at) counts a third. So FedSAM counts two a sample, MimeLite one more for the gradient of all
data at the end, and FedEnt's survey one mini-batch more a client.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from speed import compact, machine, now
from workloads import WORKLOADS, Workload, fresh_choices

from fedkeel.data.federated import FederatedData
from fedkeel.local.build import Workshop
from fedkeel.local.executor import Executor
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.local.native.gradient import NativeGradient
from fedkeel.local.native.library import load
from fedkeel.methods import methods
from fedkeel.params import FlatModel
from fedkeel.runner.choice import choose, instruction_set
from fedkeel.runner.prepare import prepare
from fedkeel.runner.simulation import Simulation
from fedkeel.runner.threads import threads
from fedkeel.wire.orders import Order, Trained

BLOCK = {"W1": 3, "W2": 10, "W3": 5, "W4": 1, "W5": 5}
"""Rounds that are timed together."""
WATCHED = 3
"""Rounds in which gradients are counted."""
FORWARD = 1 / 3
"""Of a gradient, what going forward costs."""
LIMIT = 1.10
NEED_A_BODY = {"fedbabu", "moon"}
WITH_FORWARD_PASSES = {"fedgh", "moon"}
"""That may cost more, because the kernels know gradients but no features: what they cost is told."""
FLEET = ["fleet.speed_ratio=5"]
Row = dict[str, Any]


class Counted:
    """An executor that counts jobs."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.jobs = 0

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        self.jobs += len(orders) if limit is None else 0  # surveys are no jobs
        return self._executor.train(orders, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


class Contender:
    """A method whose rounds can be run a few at a time."""

    def __init__(self, workload: Workload, data: FederatedData, name: str, rounds: int, overrides: Sequence[str]):
        experiment = workload.experiment(rounds, [f"algorithm.name={name}", *FLEET, *overrides])
        experiment, data, module = prepare(experiment, data)
        rule, _ = experiment.algorithm.rules()
        flat = FlatModel(module)
        workshop = Workshop(module, data, rule, experiment.local, experiment.seed)
        self._threads = experiment.threads
        with threads(self._threads):
            self.settings = choose(experiment, workshop, flat).settings
        self._executor = Counted(workshop.executor(self.settings))
        self._rounds = Simulation(experiment.replace(executor=self.settings), data, flat, self._executor).rounds()

    def block(self, rounds: int) -> tuple[float, int]:
        """(Seconds, jobs) of so many rounds."""
        before = self._executor.jobs
        with threads(self._threads):
            seconds = sum(next(self._rounds).seconds for _ in range(rounds))
        return seconds, self._executor.jobs - before

    def close(self) -> None:
        self._executor.close()


@contextmanager
def watched() -> Iterator[list[float]]:
    """Whatever computes gradients in this process is watched; what it adds to the list are gradients of a sample."""
    found: list[float] = []
    depth = 0
    kinds: dict[str, Callable[[Any, Any], float]] = {
        "__call__": lambda given, _: given[1].sizes.sum(),
        "descend": lambda given, _: given[1].sizes.sum(),
        "train": lambda given, outcomes: (2 if given[0].course.ascent else 1) * outcomes.seen.sum(),
        "loss": lambda given, _: FORWARD * given[1].sizes.sum(),
        "features": lambda given, _: FORWARD * given[2].shape[0] * given[2].shape[1],
    }

    def watch(function: Callable[..., Any], count: Callable[[Any, Any], float]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(self: object, *given: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                result = function(self, *given)
            finally:
                depth -= 1
            if not depth:  # one kind may call another
                found.append(float(count(given, result)))
            return result

        return inner

    classes = (NativeGradient, AutogradGradient)
    kept = [(each, name, each.__dict__.get(name)) for each in classes for name in kinds]
    for each in classes:
        for name, count in kinds.items():
            setattr(each, name, watch(getattr(each, name), count))
    try:
        yield found
    finally:
        for each, name, before in kept:
            delattr(each, name)
            if before is not None:
                setattr(each, name, before)


def gradients(workload: Workload, data: FederatedData, name: str) -> float:
    """Of one job, in gradients of a sample."""
    one = ["executor.kind=threads", "executor.workers=1", f"executor.stack={workload.per_round}"]
    one = one if load() else ["executor.kind=serial"]
    contender = Contender(workload, data, name, WATCHED + 1, one)
    with watched() as found:
        _, jobs = contender.block(WATCHED)
    contender.close()
    return sum(found) / jobs


def measure(workload: Workload, names: Sequence[str], repeat: int, overrides: Sequence[str]) -> list[Row]:
    """Every block right behind one of FedAvg's: what disturbs the machine disturbs both."""
    data, rounds = workload.data(), BLOCK[workload.name]
    base = Contender(workload, data, "fedavg", len(names) * (repeat + 1) * rounds + 1, overrides)
    of_base = gradients(workload, data, "fedavg")
    rows = []
    for name in names:
        count = gradients(workload, data, name)
        contender = Contender(workload, data, name, (repeat + 1) * rounds + 1, overrides)
        pairs = [(base.block(rounds), contender.block(rounds)) for _ in range(repeat + 1)][1:]
        contender.close()
        jobs = [(mine[0] / mine[1], other[0] / other[1]) for other, mine in pairs]
        ratios = [mine / count / (other / of_base) for mine, other in jobs]
        row = {
            "method": name,
            "seconds": float(np.median([mine for mine, _ in jobs])) * workload.per_round,
            "fedavg_seconds": float(np.median([other for _, other in jobs])) * workload.per_round,
            "gradients": count / of_base,
            "ratio": float(np.median(ratios)),
            "whole": float(np.median([mine / other for mine, other in jobs])),
            "ratios": ratios,
            "executor": contender.settings.model_dump(),
            "instruction_set": instruction_set(contender.settings),
        }
        rows.append(row)
        print(f"{workload.name} {told(row)}", flush=True)
    base.close()
    return rows


def told(row: Row) -> str:
    """A method in a line."""
    low, high = np.percentile(row["ratios"], [25, 75])
    over = "  OVER" * (row["ratio"] > LIMIT)
    return (
        f"{row['method']:12} {row['gradients']:5.2f} gradients, {1e3 * row['seconds']:7.1f} ms for a round's jobs, "
        f"{row['ratio']:5.2f} ({low:.2f} to {high:.2f}) a gradient, {row['whole']:5.2f} in all; "
        f"{compact(row['executor'], row['instruction_set'])}{over}"
    )


def table(report: dict[str, Any]) -> str:
    """Ratios, a row a method; those beyond the limit in bold."""
    found = {name: {row["method"]: row for row in rows} for name, rows in report["workloads"].items()}
    heads = [f"time per gradient, {name}: {WORKLOADS[name].about}" for name in found]
    first = next(iter(found.values()))
    lines = [
        "| method | gradients per sample | " + " | ".join(heads) + " | time per job | executor |",
        "|---|--:|" + "--:|" * (len(found) + 1) + "---|",
    ]
    for each in methods():
        if each not in first:
            continue
        cells = []
        for rows in found.values():
            ratio = rows[each]["ratio"] if each in rows else None
            cells.append("" if ratio is None else f"**{ratio:.2f}**" if ratio > LIMIT else f"{ratio:.2f}")
        row = first[each]
        how = compact(row["executor"], row["instruction_set"])
        more = f"{row['whole']:.2f} | {how}"
        lines.append(f"| {each} | {row['gradients']:.2f} | {' | '.join(cells)} | {more} |")
    over = [each for each, row in first.items() if row["ratio"] > LIMIT]
    aside = [each for each in over if each in WITH_FORWARD_PASSES]
    lines += ["", f"More than {LIMIT - 1:.0%} longer than FedAvg per gradient: {', '.join(over) or 'none'}."]
    lines += [f"Of these, {', '.join(aside)} go forward once more, which PyTorch does."] * bool(aside)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1"])
    parser.add_argument("--only", default="", metavar="NAME[,NAME]", help="methods")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--from", dest="known", type=Path, help="only print the table of figures written before")
    given = parser.parse_args()
    if given.known:
        print(table(json.loads(given.known.read_text())))
        return
    report: Row = {"date": now(), "machine": machine(), "workloads": {}}
    for name in given.workloads:
        workload = WORKLOADS[name]
        unfit = NEED_A_BODY if workload.model == "linear" else set()
        asked = given.only.split(",") if given.only else methods()
        with fresh_choices():
            names = [each for each in asked if each not in unfit]
            report["workloads"][name] = measure(workload, names, given.repeat, given.overrides)
    print("\n" + table(report))
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
