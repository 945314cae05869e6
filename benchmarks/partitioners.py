"""Seconds to partition 1,000,000 labels of 10 classes: fedkeel against flwr-datasets.

    python benchmarks/partitioners.py [--flower-python /path/to/python] [--limit 60]

flwr-datasets may live in an environment of its own: each of its cases runs in a process of `--flower-python`
and is ended after `--limit` seconds. What is timed of it is the least that settles every client's samples:
for IID one `load_partition` a client, for the others the computation of all indices, which includes reading
the label column as their code does it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

SAMPLES, CLASSES = 1_000_000, 10
CLIENTS = (1_000, 10_000, 100_000)
KINDS = ("iid", "dirichlet per client", "dirichlet per class", "shards", "classes")


def labels() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(0).integers(0, CLASSES, SAMPLES)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def time_ours(kind: str, clients: int) -> float:
    from fedkeel.data.partition import Classes, Dirichlet, Iid, Shards  # not there under Flower's Python

    partition = {
        "iid": Iid(),
        "dirichlet per client": Dirichlet(alpha=0.5, per="client"),
        "dirichlet per class": Dirichlet(alpha=0.5, per="class"),
        "shards": Shards(shards_per_client=2),
        "classes": Classes(classes=2),
    }[kind]
    column = labels()
    return seconds(lambda: partition.assign(column, clients, seed=0))


def time_theirs(kind: str, clients: int) -> float:
    flower = import_module("flwr_datasets.partitioner")
    dataset = import_module("datasets").Dataset.from_dict({"label": labels()})
    by_label = {"num_partitions": clients, "partition_by": "label", "seed": 0}
    partitioner = {
        "iid": lambda: flower.IidPartitioner(clients),
        "dirichlet per client": lambda: flower.InnerDirichletPartitioner(
            [SAMPLES // clients] * clients, partition_by="label", alpha=0.5 / CLASSES, seed=0
        ),
        "dirichlet per class": lambda: flower.DirichletPartitioner(alpha=0.5, min_partition_size=0, **by_label),
        "shards": lambda: flower.ShardPartitioner(num_shards_per_partition=2, **by_label),
        "classes": lambda: flower.PathologicalPartitioner(num_classes_per_partition=2, **by_label),
    }[kind]()

    def settle() -> None:
        if kind == "iid":
            partitioner.dataset = dataset.shuffle(seed=0)
            for client in range(clients):
                partitioner.load_partition(client)
        else:
            partitioner.dataset = dataset
            assert partitioner.num_partitions == clients

    return seconds(settle)


def in_process(python: str, kind: str, clients: int, limit: float) -> str:
    """Their time as text; the time it takes to start is not held against them."""
    command = [python, __file__, "--theirs", kind, str(clients)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 15, check=False)
    except subprocess.TimeoutExpired:
        return f">{limit:.0f} s"
    if done.returncode:
        return "fails: " + done.stderr.strip().splitlines()[-1]
    taken = float(done.stdout.split()[-1])
    return f"{taken:.2f} s" if taken <= limit else f">{limit:.0f} s"


def has_flower(python: str) -> bool:
    return subprocess.run([python, "-c", "import flwr_datasets"], capture_output=True, check=False).returncode == 0


def print_table(python: str, limit: float) -> None:
    compare = has_flower(python)
    if not compare:
        print(f"flwr_datasets is not importable by {python}: timing fedkeel alone (see --flower-python)\n")
    print(f"| {SAMPLES:,} labels | clients | fedkeel | flwr-datasets |\n| --- | ---: | ---: | ---: |")
    for kind in KINDS:
        for clients in CLIENTS:
            theirs = in_process(python, kind, clients, limit) if compare else "-"
            print(f"| {kind} | {clients:,} | {time_ours(kind, clients):.2f} s | {theirs} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flower-python", default=sys.executable, help="a Python that has flwr-datasets")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each of its cases")
    parser.add_argument("--theirs", nargs=2, metavar=("KIND", "CLIENTS"), help="time one case of it in this process")
    options = parser.parse_args()
    if options.theirs:
        kind, clients = options.theirs
        print(time_theirs(kind, int(clients)))
    else:
        print_table(options.flower_python, options.limit)


if __name__ == "__main__":
    main()
