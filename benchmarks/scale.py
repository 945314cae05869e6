"""Memory and seconds a round as the fleet grows: `python benchmarks/scale.py [--json FILE] [--only PART]`.

A linear model on small generated data. `fleets`: 1,000 clients a round of 10,000, 100,000 and 1,000,000 clients, with
the executor that `auto` chooses. `million`: 10,000 clients a round of 1,000,000, with `auto`, with worker processes and
on a Ray cluster of its own on this machine. `weights`: 10,000 clients a round of a model with 7,850 weights, all of
which come back, or only their mean (`reduce`). Each run is a process of its own, with processes that it starts.

The peak is the memory of all of them together, sampled every 0.2 s: the sum of their proportional set sizes (Pss in
/proc/PID/smaps_rollup), which counts memory that several of them share once, as Ray's object store.

Where a round's time goes: the calls of the executor are timed in the run itself; what is left of a round is the server.
Training is the processor time of one round in one process on one core with the same stacks. With W workers, 1/W of it
is compared with the time in the executor; the rest of that is handing out orders and taking back results.

    python benchmarks/scale.py --from benchmarks/results/scale.json      # the tables again
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FLEETS = (10_000, 100_000, 1_000_000)
SAMPLES, FEATURES, ROUNDS = 4, 20, 30
MILLION, MANY = 1_000_000, 10_000
KINDS = ("auto", "processes", "ray")
_TICK = 0.2


def tree(root: int) -> dict[int, str]:
    """A process and all that come from it, with their names."""
    parents, names = {}, {}
    for each in os.listdir("/proc"):
        if each.isdecimal():
            with suppress(OSError, ValueError):
                text = Path("/proc", each, "stat").read_text(encoding="utf-8", errors="replace")
                parents[int(each)] = int(text.rpartition(")")[2].split()[1])
                names[int(each)] = text.partition("(")[2].rpartition(")")[0]
    found = {root}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return {each: names.get(each, "?") for each in found}


def memory(process: int) -> float:
    """Its share of the memory that it uses, in GiB: what n processes use counts one n-th for each."""
    with suppress(OSError):
        for line in Path("/proc", str(process), "smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 2**20
    return 0.0


class Watch(threading.Thread):
    """Looks at a process and all that come from it until it ends."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peak, self.most = process, 0.0, list[tuple[str, float]]()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_TICK):
            each = [(name, memory(number), number) for number, name in tree(self.process).items()]
            total = sum(share for _, share, _ in each)
            if total > self.peak:
                self.peak = total
                self.most = [
                    ("driver" if number == self.process else name, share)
                    for name, share, number in sorted(each, key=lambda told: -told[1])
                ]


def data_of(told: Row) -> Any:
    import numpy as np

    from fedkeel import FederatedData

    rng = np.random.default_rng(0)
    x = rng.standard_normal((told["clients"] * told["samples"], told["features"]), dtype=np.float32)
    return FederatedData.from_arrays(
        x, rng.integers(0, 10, len(x)), clients=told["clients"], test=(x[:1000], [*range(10)] * 100)
    )


def executor(told: Row) -> Row:
    """Workers are given a core each; `processes` train as the other two do, in stacks with native kernels."""
    kind, cores = told["executor"], os.cpu_count() or 1
    alike = {"stack": -(-told["per_round"] // cores), "native": True} if kind == "processes" else {}
    return {"kind": kind} if kind == "auto" else {"kind": kind, "workers": cores, **alike}


def measure(told: Row) -> Row:
    """One run, in this process."""
    from fedkeel import Experiment, run
    from fedkeel.local.build import Workshop

    data, rounds = data_of(told), told["rounds"]
    experiment = Experiment(
        model="linear",
        per_round=told["per_round"],
        rounds=rounds,
        evaluate_every=rounds,
        reduce=told.get("reduce", False),
        local={"batch_size": 10},
        executor=executor(told),
    )
    taken, make = list[float](), Workshop.executor

    def timed(workshop: Workshop, settings: Any) -> Any:
        made = make(workshop, settings)
        train = made.train

        def training(*orders: Any) -> Any:
            begun = time.perf_counter()
            trained = train(*orders)
            taken.append(time.perf_counter() - begun)
            return trained

        object.__setattr__(made, "train", training)
        return made

    Workshop.executor = timed  # type: ignore[method-assign]
    begun = time.perf_counter()
    summary = run(experiment, data=data).summary
    seconds = summary["seconds_per_round_median"]
    return {
        "all_samples": len(data.train.y),
        "seconds_per_round": seconds,
        "clients_per_second": told["per_round"] / seconds,
        "in_executor": statistics.median(taken[-rounds:]),
        "wall_seconds": time.perf_counter() - begun,
        "executor": summary["executor"],
        "ray": summary.get("ray"),
    }


def training(told: Row) -> dict[str, float]:
    """Processor seconds of a round on one core, with each of these ways to train."""
    import torch

    from fedkeel import Experiment
    from fedkeel.local.build import Workshop
    from fedkeel.local.executors.choose import SERIAL
    from fedkeel.local.settings import ExecutorSettings
    from fedkeel.params import FlatModel
    from fedkeel.runner.choice import first_orders
    from fedkeel.runner.prepare import prepare

    torch.set_num_threads(1)
    common: Row = {"clients": told["clients"], "per_round": told["per_round"], "rounds": told["rounds"]}
    experiment, data, module = prepare(Experiment(model="linear", local={"batch_size": 10}, **common), data_of(told))
    rule, _ = experiment.algorithm.rules()
    shop = Workshop(module, data, rule, experiment.local, experiment.seed)
    asks = shop.executor(SERIAL)
    orders = first_orders(experiment, data, FlatModel(module), asks)
    found = {}
    for kind, way in told["ways"].items():
        same = {name: way[name] for name in ("stack", "native", "channels_last")}
        alone, taken = shop.executor(ExecutorSettings(kind="vectorised", **same)), []
        for _ in range(8):
            begun = time.process_time()
            alone.train(orders)
            taken.append(time.process_time() - begun)
        found[kind] = statistics.median(taken[1:])
        alone.close()
    return found


def apart(what: str, told: Row) -> tuple[Row, Watch]:
    """In a process of its own, which is watched."""
    command = [sys.executable, __file__, what, json.dumps(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watch = Watch(process.pid)
        watch.start()
        said, _ = process.communicate()
        watch.over.set()
        watch.join()
    if process.returncode:
        raise SystemExit(f"{told}: failed")
    return json.loads(said.strip().splitlines()[-1]), watch


def one(**told: Any) -> Row:
    """A row of the table."""
    found, watch = apart("--one", told)
    others = [share for name, share in watch.most if name != "driver"]
    kinds: dict[str, float] = {}
    for name, share in watch.most:
        kinds[name] = kinds.get(name, 0.0) + share
    most = {"peak_gib": watch.peak, "peak_of_a_worker_gib": max(others, default=0.0), "peak_by_process": kinds}
    row = told | {"asked": told["executor"]} | found | {"samples": found["all_samples"]} | most
    print(f"{told['clients']:,} clients, {told['executor']}: {line(row)}", file=sys.stderr, flush=True)
    return row


def line(row: Row) -> str:
    return (
        f"{1e3 * row['seconds_per_round']:.1f} ms a round, {row['clients_per_second']:,.0f} clients/s, "
        f"{row['peak_gib']:.2f} GiB"
    )


def fleets() -> list[Row]:
    cases = [(clients, SAMPLES, FEATURES) for clients in FLEETS] + [(10_000, 6, 784)]
    return [
        one(clients=n, samples=samples, features=features, rounds=ROUNDS, per_round=1000, executor="auto")
        for n, samples, features in cases
    ]


def million() -> list[Row]:
    fleet: Row = {"clients": MILLION, "samples": SAMPLES, "features": FEATURES, "rounds": ROUNDS, "per_round": MANY}
    rows = [one(executor=kind, **fleet) for kind in KINDS]
    ways = {row["asked"]: row["executor"] for row in rows}
    found, _ = apart("--training", fleet | {"ways": ways})
    for row in rows:
        row |= {"training": found[row["asked"]]}
    return rows


def weights() -> list[Row]:
    fleet: Row = {"clients": 20_000, "samples": SAMPLES, "features": 784, "rounds": ROUNDS, "per_round": MANY}
    return [one(executor=kind, reduce=reduce, **fleet) for kind in KINDS for reduce in (False, True)]


PARTS = {"fleets": fleets, "million": million, "weights": weights}


def workers(row: Row) -> int:
    """How many train at a time."""
    way = row["executor"]
    if way["kind"] == "ray":
        return int(row["ray"]["workers"])
    return way["workers"] or os.cpu_count() or 1 if way["kind"] in ("threads", "processes") else 1


def tables(rows: Sequence[Row]) -> str:
    """In Markdown."""
    from report import table
    from speed import compact

    heads = ["clients", "per round", "samples", "features", "ms per round", "clients per second", "peak, GiB"]
    text = table(
        [*heads, "executor"],
        [
            [
                f"{row['clients']:,}",
                f"{row['per_round']:,}",
                f"{row['samples']:,}",
                str(row["features"]),
                f"{1e3 * row['seconds_per_round']:.0f}",
                f"{row['clients_per_second']:,.0f}",
                f"{row['peak_gib']:.2f}",
                compact(row["executor"]) + (", `reduce`" if row.get("reduce") else ""),
            ]
            for row in rows
        ],
    )
    parts = []
    for row in (row for row in rows if "training" in row):
        total, training = row["seconds_per_round"], row["training"] / workers(row)
        rest, server = max(0.0, row["in_executor"] - training), total - row["in_executor"]
        where = "; ".join(f"{name} {share:.2f}" for name, share in row["peak_by_process"].items() if share > 0.005)
        times = [f"{1e3 * each:.0f}" for each in (total, server, training, rest)]
        parts.append([compact(row["executor"]), *times, where])
    if parts:
        heads = ["executor", "ms per round", "server", "training", "rest", "GiB at the peak"]
        text += "\n" + table(heads, parts)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    parser.add_argument("--only", choices=PARTS, help="one of the parts")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="show an earlier --json instead")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--training", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one or options.training:
        print(json.dumps(measure(options.one) if options.one else training(options.training)))
        return
    rows: list[Row] = []
    if options.source:
        rows = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        for part, rows_of in PARTS.items():
            rows += rows_of() if options.only in (None, part) else []
    print(tables(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
