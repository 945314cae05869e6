"""The benchmark's work on Flower's simulation: a ServerApp with its FedAvg, a ClientApp with a bare loop.

    PYTHONPATH=benchmarks python benchmarks/peers/flower_app.py W1 --rounds 7

Tuned for Flower: data and model are built once in each Ray actor, the model travels as one flat array, evaluation and
its log are off, every actor has one CPU and PyTorch one thread in it (`--cpus 2` to compare). A round is the time
between two calls of `configure_train`. Flower looks for messages ten times a second, which bounds a round from below,
and each time compares every node with every message, which is what a round of 1,000 out of 10,000 clients spends.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import torch
from bare import LOOP, BareLoop
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import ALL

WORKLOAD = "FEDKEEL_BENCHMARK_WORKLOAD"  # the environment reaches the actors, arguments do not
THREADS = "FEDKEEL_BENCHMARK_THREADS"
client_app, server_app = ClientApp(), ServerApp()


@cache
def loop() -> BareLoop:
    """This process's data and model."""
    torch.set_num_threads(int(os.environ[THREADS]))
    workload = ALL[os.environ[WORKLOAD]]
    return BareLoop(workload.experiment(rounds=1), workload.data(), tricks=os.environ.get(LOOP) != "plain")


@client_app.train()
def train(message: Message, context: Context) -> Message:
    (received,) = message.content["arrays"].to_numpy_ndarrays()
    loop().w.copy_(torch.from_numpy(received))
    samples = loop().train_client(int(context.node_config["partition-id"]))
    content = {"arrays": ArrayRecord([loop().w.numpy()]), "metrics": MetricRecord({"num-examples": samples})}
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """Flower's FedAvg that notes when each round begins."""

    def __init__(self, per_round: int, clients: int) -> None:
        share = per_round / clients
        super().__init__(share, fraction_evaluate=0.0, min_train_nodes=per_round, min_available_nodes=clients)
        self.began: list[float] = []

    def configure_train(self, *args: Any, **named: Any) -> Iterable[Message]:
        self.began.append(time.perf_counter())
        return super().configure_train(*args, **named)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        """Flower's own would quietly average over fewer clients."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        assert len(replies) == self.min_train_nodes
        return super().aggregate_train(server_round, replies)


def simulate(name: str, rounds: int, cpus: int) -> list[float]:
    """Seconds of each round; one more is run, whose beginning ends the last."""
    workload = ALL[name]
    strategy = Timed(workload.per_round, workload.clients)

    @server_app.main()
    def serve(grid: Grid, _context: Context) -> None:
        weights = ArrayRecord([loop().w.numpy().copy()])
        strategy.start(grid, weights, num_rounds=rounds + 1, timeout=None)

    resources = {"num_cpus": cpus, "num_gpus": 0.0}
    backend = {"init_args": {"num_cpus": 2}, "client_resources": resources}
    run_simulation(server_app, client_app, workload.clients, backend_config=backend)
    return [after - before for before, after in pairwise(strategy.began)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=ALL)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpus", type=int, default=1, help="of a client, and threads of PyTorch in it")
    options = parser.parse_args()
    os.environ |= {WORKLOAD: options.workload, THREADS: str(options.cpus)}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    seconds = simulate(options.workload, options.rounds, options.cpus)
    how = f"{2 // options.cpus} Ray actor(s) of {options.cpus} CPU(s)"
    report = {"version": f"flwr {version('flwr')}, ray {version('ray')}", "how": how, "seconds": seconds}
    print(json.dumps(report))


if __name__ == "__main__":
    # By its name: what lives in __main__ Ray would send with every message, and nothing would stay in the actors.
    import flower_app

    flower_app.main()
