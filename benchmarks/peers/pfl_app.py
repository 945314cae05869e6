"""The benchmark's work on pfl-research: its FederatedAveraging and SimulatedBackend around a bare loop.

    PYTHONPATH=benchmarks python benchmarks/peers/pfl_app.py W1 --rounds 7

Tuned for pfl: clients are numbers of samples in one tensor, evaluation is off, metrics are not printed, the local loop
is a bare one in the hook `train_one_user`, and two processes of one thread share the clients, started as its guide
to distributed simulations says. To compare: `--processes 1 --threads 2`, and `--own-loop`, pfl's SGD on tensors.
A round is the time between two calls of a callback.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from bare import LOOP, BareLoop
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from workloads import ALL

RANK = "PFL_WORKER_RANK"


class BareAveraging(FederatedAveraging):
    """FedAvg whose clients train with a bare loop, which works on the very parameters of pfl's model."""

    def __init__(self, loop: BareLoop) -> None:
        super().__init__()
        self.loop = loop

    def train_one_user(
        self, initial_model_state: Any, model: PyTorchModel, user_dataset: Dataset, central_context: Any
    ) -> tuple[Any, Metrics]:
        for parameter, _ in self.loop.pairs:
            parameter.grad = None  # pfl leaves the server's step there
        self.loop.train_client(int(user_dataset.user_id))
        return model.get_model_difference(initial_model_state), Metrics()


class Clock(TrainingProcessCallback):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.ended = [time.perf_counter()]

    def after_central_iteration(self, *_args: object, **_named: object) -> tuple[bool, Metrics]:
        self.ended.append(time.perf_counter())
        return False, Metrics()


def federate(loop: BareLoop, own_loop: bool) -> FederatedDataset:
    """Clients drawn at random; pfl itself trains on their tensors, a bare loop needs no more than their numbers."""

    def client(number: int) -> Dataset:
        samples = loop.clients[number]
        if own_loop:
            samples = samples[torch.randperm(len(samples))]
            return Dataset((loop.inputs(samples), loop.y[samples]), user_id=str(number))
        return Dataset((samples,), user_id=str(number))

    return FederatedDataset(client, get_user_sampler("random", list(range(len(loop.clients)))))


def simulate(name: str, rounds: int, own_loop: bool) -> list[float]:
    """Seconds of each round."""
    np.random.seed(0)  # the same in all processes: they draw the same clients and share them
    workload = ALL[name]
    loop = BareLoop(workload.experiment(rounds=1), workload.data(), tricks=os.environ.get(LOOP) != "plain")
    module = loop.module
    module.loss = lambda x, y: cross_entropy(module(x), y)
    module.metrics = lambda *_: {}
    clients = federate(loop, own_loop)
    algorithm = FederatedAveraging() if own_loop else BareAveraging(loop)
    clock = Clock()
    algorithm.run(
        NNAlgorithmParams(rounds, rounds + 1, workload.per_round, None),
        SimulatedBackend(clients, clients),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(workload.batch, local_num_epochs=1, local_learning_rate=loop.local.lr),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return list(np.diff(clock.ended))


def start(processes: int) -> int:
    """This script again, so many times, as pfl's workers; the first one reports. Returns an exit code."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    addresses = ",".join(f"localhost:{port + number}" for number in range(processes))
    command = [sys.executable, *sys.argv]
    workers = []
    for rank in range(processes):
        environment = {**os.environ, "PFL_WORKER_ADDRESSES": addresses, RANK: str(rank)}
        workers.append(subprocess.Popen(command, env=environment, stdout=None if rank == 0 else subprocess.DEVNULL))
    return max(abs(worker.wait()) for worker in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=ALL)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, in each process")
    parser.add_argument("--own-loop", action="store_true", help="let pfl do the local training")
    options = parser.parse_args()
    if options.processes > 1 and RANK not in os.environ:
        raise SystemExit(start(options.processes))
    torch.set_num_threads(options.threads)
    seconds = simulate(options.workload, options.rounds, options.own_loop)
    how = f"{options.processes} process(es) of {options.threads} thread(s)" + ", own loop" * options.own_loop
    print(json.dumps({"version": f"pfl {version('pfl')}", "how": how, "seconds": seconds}))


if __name__ == "__main__":
    main()
