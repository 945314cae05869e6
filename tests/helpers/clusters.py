"""Ray clusters on this machine: several nodes, which a test may kill. All end with the block."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from fedkeel.local.cluster.connection import package

LOOPBACK = "127.0.0.2"
STORE = 200 << 20
"""Bytes of each node's object store."""


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
