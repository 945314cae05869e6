"""Clusters that cannot be used: each time a sentence, and never a wait without end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

pytest.importorskip("ray")

from fedkeel import InputError
from fedkeel.errors import MishapError
from fedkeel.local import machine
from fedkeel.local.cluster import alike, connection, pool
from fedkeel.local.cluster.leases import held
from fedkeel.local.settings import ExecutorSettings
from tests.helpers.clusters import Local, cluster
from tests.helpers.loopback import closed_port
from tests.helpers.studies import until

pytestmark = pytest.mark.extras


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    with cluster(1, 1) as made:
        yield made


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LEAVE_SECONDS", 0.2)
    monkeypatch.setattr(connection, "FULL_SECONDS", 0.5)


def refused(kind: type[Exception] = InputError, **more: Any) -> str:
    """What is said of these settings."""
    with pytest.raises(kind) as error, held(ExecutorSettings(kind="ray", stack=0, **more)):
        pass
    return str(error.value)


def test_nothing_answers() -> None:
    said = refused(address=f"127.0.0.1:{closed_port()}")
    assert "executor.address: nothing answers at 127.0.0.1:" in said
    assert "give HOST:PORT as `ray start --head` prints it" in said


def test_nothing_answers_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", told := f"127.0.0.1:{closed_port()}")
    assert f"executor.address: nothing answers at {told} of RAY_ADDRESS (" in refused(address="auto")


def test_something_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.2", 0)) as server:
        said = refused(address=f"127.0.0.2:{server.getsockname()[1]}")
    assert said.startswith("executor.address: no Ray cluster can be used at 127.0.0.2:")


def test_more_workers_than_fit(local: Local) -> None:
    assert refused(address=local.address, workers=3) == (
        "executor: the cluster has too little for 3 workers of 1 CPU: it has 2 of 2 CPUs free, room for 2; set "
        "executor.workers, cpus, gpus or memory to less, or add machines"
    )
    assert "1 worker of 1 CPU and 1 GPU: it has 2 of 2 CPUs free, 0 of 0 GPUs free" in refused(
        address=local.address, gpus=1
    )
    assert "1 worker of 2 CPUs and 1000 GB of memory" in refused(address=local.address, cpus=2, memory=1000)


def test_a_cluster_that_others_use(local: Local) -> None:
    ray = connection.package()
    ray.init(address=local.address, log_to_driver=False)
    try:
        others = [ray.remote(num_cpus=1)(Idle).remote() for _ in range(2)]
        ray.get([other.here.remote() for other in others])
        said = refused(MishapError)
        assert said.startswith("executor.kind=ray: the cluster is full, as others use it (0 of 2 CPUs free)")
        said = refused(MishapError, workers=2)
        assert "and 2 workers of 1 CPU are needed, each on one machine; try later, ask for fewer, or add" in said
        ray.kill(others.pop())
        until(lambda: ray.available_resources().get("CPU") == 1)
        with held(ExecutorSettings(kind="ray", stack=0, cpus=0.5)) as found:
            assert found is not None
            assert found.size == 2
        ray.kill(others.pop())
        until(lambda: ray.available_resources().get("CPU") == 2)
        others = [ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD")(Idle).remote() for _ in range(2)]
        ray.get([other.here.remote() for other in others])
        said = refused(MishapError)
        assert "the cluster is full, as others use it (1 of 2 CPUs free), and 1 worker of 1 CPU is needed, each" in said
        other = f"127.0.0.2:{closed_port()}"
        assert f"executor.address={other} cannot be used, as this program is connected" in refused(address=other)
        assert ray.is_initialized(), "a connection of the user's program stays"
    finally:
        ray.shutdown()


def test_a_cluster_of_its_own_has_what_slurm_gave_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.SLURM_MEMORY, "1000")
    said = refused(memory=0.9)
    assert "1 worker of 1 CPU and 0.9 GB of memory: it has " in said
    assert "0.734 of 0.734 GB free, room for 0" in said
    with held(ExecutorSettings(kind="ray", stack=0, workers=1, memory=0.5)) as found:
        assert found is not None
        assert found.words.endswith(" and 1.05 GB of memory by SLURM_MEM_PER_NODE")


class Idle:
    """Takes a CPU."""

    def here(self) -> int:
        return 1


@pytest.mark.parametrize("what", ["fedkeel", "PyTorch"])
def test_another_version(local: Local, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {**alike.facts(), what: "9.9"}
    monkeypatch.setattr(alike, "facts", lambda: told)
    said = refused(address=local.address)
    assert f"executor.address: the machine 127.0.0.2 of the cluster has another {what} (" in said
    assert "than this one (9.9); install the same version there" in said


def test_another_version_of_python(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = connection.package()
    monkeypatch.setattr(ray._private.utils, "compute_version_info", lambda: ("2.55.1", "3.12.0"))
    said = refused(address=local.address)
    assert "has another Python or Ray than this process; install the same on all machines" in said


def test_kernels_that_a_machine_does_not_have(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded:
        isa = "avx1024"

    monkeypatch.setattr(alike.library, "load", Loaded)
    said = refused(address=local.address)
    assert "the machine 127.0.0.2 of the cluster cannot use the native kernels for avx1024; set FEDKEEL_" in said


def test_a_machine_that_rounds_otherwise(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch chooses its kernels by the processor."""
    told = {**alike.facts(), "bits": "AVX1024, 12345678"}
    monkeypatch.setattr(alike, "facts", lambda: told)
    said = refused(address=local.address)
    assert said.startswith("executor.address: PyTorch rounds otherwise on the machine 127.0.0.2 of the cluster (")
    assert "than on this one (" in said
    assert "AVX1024, 12345678), so results would depend on who trains what; use machines of one kind, or set" in said


def test_a_machine_that_joins_later_is_looked_at_too(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what its worker says."""
    told = {**alike.facts(), "bits": "other bits"}
    monkeypatch.setattr(connection, "check", lambda *_: None)
    monkeypatch.setattr(alike, "facts", lambda: told)
    said = refused(MishapError, address=local.address)
    assert said.startswith("executor.kind=ray: a worker could not be started: PyTorch rounds otherwise on the machine")
    monkeypatch.undo()
    with held(ExecutorSettings(kind="ray", stack=0, address=local.address, workers=2)) as found:
        assert found is not None
        for seat in found.seats:
            os.kill(seat.process, signal.SIGKILL)
        objection, passed = alike.objection, list[float]()

        def objecting(*given: Any) -> str | None:
            passed.append(pool.START_SECONDS)  # nobody else comes
            return objection(*given)

        monkeypatch.setattr(pool, "AGAIN_SECONDS", 0.0)
        monkeypatch.setattr(pool, "monotonic", lambda: time.monotonic() + sum(passed))
        monkeypatch.setattr(alike, "facts", lambda: told)
        monkeypatch.setattr(alike, "objection", objecting)
        with pytest.raises(MishapError, match=r"no other could be started within 60 seconds: PyTorch rounds otherwise"):
            [*found.work([[0], [1]], lambda seat, _: seat.actor.where.remote(), str)]


def test_the_cluster_that_this_machine_belongs_to(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(ExecutorSettings(kind="ray", stack=0, address="auto")) as found:
        assert found is not None
        assert found.size == 2
        assert found.words == f"Ray: 2 workers of 1 CPU on 2 machines with 2 CPUs (the cluster {local.address})"
    monkeypatch.setenv("RAY_TMPDIR", "/nowhere")
    monkeypatch.setattr(connection.package()._private.services, "find_gcs_addresses", lru_cache(set))
    assert "no Ray cluster can be used at auto: this machine is part of none" in refused(address="auto")
