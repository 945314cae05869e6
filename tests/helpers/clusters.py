"""Ray clusters of several nodes on this machine, and runs in the middle of which a worker or a node is killed."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkeel import Experiment, Result, run
from fedkeel.local.cluster.connection import package
from tests.helpers import federation
from tests.helpers.methods import small

LOOPBACK = "127.0.0.2"
STORE = 200 << 20
"""Bytes of each node's object store."""
SOON = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}
"""With these, the head notices within two seconds that a node is gone; else it takes a quarter of a minute."""


@dataclass(frozen=True)
class Local:
    """A cluster; the first node is its head."""

    address: str
    made: Any

    def add(self, cpus: float = 1) -> Any:
        """One more node."""
        return self.made.add_node(**_node(cpus))

    def raylet(self, node: Any) -> int:
        """The process that takes all workers of a node along."""
        (found,) = node.all_processes["raylet"]
        return int(found.process.pid)


def _node(cpus: float) -> dict[str, Any]:
    # A test's data stay small, and no dashboard needs a port.
    return {"num_cpus": cpus, "object_store_memory": STORE, "node_ip_address": LOOPBACK, "include_dashboard": False}


@contextmanager
def cluster(*cpus: float) -> Iterator[Local]:
    """A cluster with a node for each of these numbers of CPUs; `auto` means this one meanwhile."""
    ray = package()
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="fk-", dir="/tmp")  # sockets lie there: a long path is refused
    os.mkdir(f"{folder}/ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        for name, value in SOON.items():
            patch.setenv(name, value)
        try:
            with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
                made = Cluster(initialize_head=True, head_node_args=_node(cpus[0]))
            found = Local(made.address, made)
            try:
                for each in cpus[1:]:
                    found.add(each)
                yield found
            finally:
                ray.shutdown()
                with suppress(Exception):  # some of it may have been killed
                    made.shutdown()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Fatal(nn.Module):
    """Kills a process at the sight of some samples: once for every file in a folder."""

    def __init__(self, folder: Path, raylet: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
        self.folder, self.raylet, self.driver = str(folder), raylet, os.getpid()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training and os.getpid() != self.driver:
            self.seen += 1
            self._kill()
        return self.head(x)

    def _kill(self) -> None:
        for name in sorted(os.listdir(self.folder)):
            if self.raylet and name != str(os.getppid()):
                continue
            try:  # by one process only
                os.remove(os.path.join(self.folder, name))
            except FileNotFoundError:
                continue
            os.kill(os.getppid() if self.raylet else os.getpid(), signal.SIGKILL)
            time.sleep(60 if self.raylet else 0)  # its raylet takes it along


ALONE = {"kind": "ray", "stack": 0, "channels_last": False, "native": False, "workers": 1}
"""Settings of an executor with a cluster of its own."""


def trained(algorithm: str, model: nn.Module, executor: dict[str, Any], out: Path, **more: Any) -> Result:
    experiment = Experiment(
        algorithm=small(algorithm), rounds=3, per_round=5, local={"epochs": 2, "batch_size": 4, "lr": 0.1},
        executor=executor, **more,
    )  # fmt: skip
    return run(experiment, out, data=federation.data(), model=model)
