"""Workers, nodes and whole runs that are killed: results stay the same, bit for bit, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ray")

from fedkeel import FedkeelError
from fedkeel.api import resume
from fedkeel.errors import MishapError
from fedkeel.local.cluster import connection
from fedkeel.local.cluster import pool as pools
from fedkeel.local.cluster.executor import OnCluster
from fedkeel.local.cluster.leases import held
from fedkeel.local.settings import ExecutorSettings
from fedkeel.params import FlatModel
from fedkeel.record.places import ROWS
from tests.helpers import federation
from tests.helpers.clusters import Fatal, Local, cluster, trained
from tests.helpers.repository import ROOT
from tests.helpers.workers import Trap, orders, settings, workshop

pytestmark = pytest.mark.extras


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    with cluster(1, 1) as made:
        yield made


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are started in the place of those that are gone at once."""
    monkeypatch.setattr(pools, "AGAIN_SECONDS", 0.0)


def asked(local: Local, **more: Any) -> dict[str, Any]:
    return {"kind": "ray", "address": local.address, "stack": 0, "channels_last": False, "native": False, **more}


def history(folder: Path) -> list[dict[str, Any]]:
    """Of a run, without real times."""
    lines = [line for name in ROWS for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [{key: value for key, value in json.loads(line).items() if key != "wall_seconds"} for line in lines]


SERIAL = {"kind": "serial", "stack": 0, "channels_last": False}


def test_workers_have_the_callers_folder_and_precision(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    precision, shop = torch.get_float32_matmul_precision(), workshop()
    with held(ExecutorSettings(**asked(local, workers=1))) as pool:
        assert pool is not None
        torch.set_float32_matmul_precision("high")
        there = shop.executor(ExecutorSettings(**asked(local, workers=1)))
        torch.set_float32_matmul_precision(precision)
        there.train(orders(shop))
        look = pool.seats[0].actor.__ray_call__
        assert pool.ray.get(look.remote(lambda _: os.getcwd())) == str(tmp_path)
        assert pool.ray.get(look.remote(lambda _: torch.get_float32_matmul_precision())) == "high"
        there.close()


@pytest.mark.parametrize("algorithm", ["fedagg", "fedasmu"])
def test_a_worker_that_is_killed_changes_nothing(local: Local, algorithm: str, tmp_path: Path) -> None:
    """Its stacks are trained again, and the sums that it held."""
    (tmp_path / "kills").mkdir()
    here = trained(algorithm, Fatal(tmp_path / "kills"), SERIAL, tmp_path / "here")
    (tmp_path / "kills" / "one").touch()
    there = trained(algorithm, Fatal(tmp_path / "kills"), asked(local, workers=2), tmp_path / "there")
    assert torch.equal(FlatModel(here.model).w, FlatModel(there.model).w)
    assert history(tmp_path / "here") == history(tmp_path / "there")
    told = there.summary["ray"]
    assert told["workers_lost"] == 1
    assert told["stacks_repeated"] >= 1
    assert json.loads((tmp_path / "there" / "summary.json").read_text())["ray"] == told


def test_a_node_that_is_killed_changes_nothing(local: Local, tmp_path: Path) -> None:
    """The run goes on with those that are left, and with a node that comes."""
    node, more = local.add(), {"reduce": True}
    (tmp_path / "kills").mkdir()
    here = trained("fedagg", Fatal(tmp_path / "kills", raylet=True), SERIAL, tmp_path / "here", **more)
    (tmp_path / "kills" / str(local.raylet(node))).touch()
    executor = asked(local, workers=3)
    there = trained("fedagg", Fatal(tmp_path / "kills", raylet=True), executor, tmp_path / "there", **more)
    assert not [*(tmp_path / "kills").iterdir()]
    assert torch.equal(FlatModel(here.model).w, FlatModel(there.model).w)
    assert history(tmp_path / "here") == history(tmp_path / "there")
    assert there.summary["ray"]["workers_lost"] == 1
    assert there.summary["ray"]["machines_lost"] == 1


def test_sums_that_are_lost_before_they_are_sent(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of one node add up theirs one after the other, and the first of them is lost."""
    (tmp_path / "kills").mkdir()
    here = trained("fedagg", Fatal(tmp_path / "kills"), SERIAL, tmp_path / "here")
    deliver, lost = OnCluster._delivered, list[int]()

    def killing(self: OnCluster, call: int, kept: pools.Kept) -> Any:
        together = [seat for seat in kept if seat.node == node.node_id]
        if not lost and len(together) == 2:
            lost.extend(place for seat in together for place in kept[seat])
            os.kill(together[0].process, signal.SIGKILL)
        return deliver(self, call, kept)

    monkeypatch.setattr(OnCluster, "_delivered", killing)
    node = local.add(2)
    there = trained("fedagg", Fatal(tmp_path / "kills"), asked(local, workers=4), tmp_path / "there")
    local.made.remove_node(node)
    assert torch.equal(FlatModel(here.model).w, FlatModel(there.model).w)
    assert history(tmp_path / "here") == history(tmp_path / "there")
    assert there.summary["ray"]["workers_lost"] == 1
    assert there.summary["ray"]["stacks_repeated"] == len(lost) > 1


def test_workers_that_die_of_sums_end_the_run(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kills").mkdir()
    deliver = OnCluster._delivered

    def killing(self: OnCluster, call: int, kept: pools.Kept) -> Any:
        os.kill(next(iter(kept)).process, signal.SIGKILL)
        return deliver(self, call, kept)

    monkeypatch.setattr(OnCluster, "_delivered", killing)
    with pytest.raises(MishapError, match="died 3 times while they added up what clients send; out of memory"):
        trained("fedagg", Fatal(tmp_path / "kills"), asked(local, workers=2), tmp_path / "there")


def test_a_worker_that_is_lost_is_replaced_in_the_same_round(local: Local) -> None:
    shop = workshop()
    with held(ExecutorSettings(**asked(local, workers=2))) as pool:
        assert pool is not None
        there = shop.executor(ExecutorSettings(**asked(local, workers=2)))
        made = orders(shop)
        want = there.train(made).w.clone()
        submitted, work = list[int](), pool.work

        def slowly(pieces: Any, submit: Any, *more: Any) -> Any:
            def one(seat: pools.Seat, piece: pools.Piece) -> Any:
                submitted.append(seat.process)
                if len(submitted) == 1:
                    os.kill(seat.process, signal.SIGKILL)
                if len({*submitted}) < 3:  # pieces are left until the third one has come
                    time.sleep(0.2)
                return submit(seat, piece)

            return work([[number] for piece in pieces for number in piece] * 20, one, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "work", slowly)
            got = there.train(made).w
        assert torch.equal(got, want)
        assert len({*submitted}) == 3
        there.close()


def test_all_workers_may_be_lost_as_long_as_others_can_be_started(local: Local) -> None:
    shop = workshop()
    made = orders(shop)
    want = shop.executor(settings("serial")).train(made).w
    with held(ExecutorSettings(**asked(local, workers=2))) as pool:
        assert pool is not None
        there = shop.executor(ExecutorSettings(**asked(local, workers=2)))
        there.train(made)
        for seat in pool.seats:
            os.kill(seat.process, signal.SIGKILL)
        assert torch.equal(there.train(made).w, want)
        flat = FlatModel(shop.module)
        for seat in pool.seats:
            os.kill(seat.process, signal.SIGKILL)
        here = shop.executor(settings("serial"))
        assert there.evaluate(flat.w, flat.buffers) == here.evaluate(flat.w, flat.buffers)
        assert pool.losses.workers >= 2
        there.close()


def test_a_client_that_kills_its_workers_is_named(local: Local) -> None:
    shop = workshop(Trap("killed"))
    there = shop.executor(ExecutorSettings(**asked(local, workers=2)))
    with pytest.raises(MishapError) as error:
        there.train(orders(shop))
    assert "3 workers of the cluster died one after the other while training client 3 in round 1" in str(error.value)
    assert "out of memory?" in str(error.value)
    there.close()


def test_what_fails_in_a_worker_is_told_with_its_client(local: Local) -> None:
    shop = workshop(Trap("fails"))
    there = shop.executor(ExecutorSettings(**asked(local, workers=2)))
    made = orders(shop)
    for _ in range(2):
        with pytest.raises(FedkeelError, match=r"training client 3 in round 1 failed in a worker: .*cannot see this"):
            there.train(made)
    assert there.train([order for order in made if order.client != 3]).w.shape[0] == 6
    there.close()


def processes_of(folder: str) -> list[int]:
    """Those whose command names it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (path / "cmdline").read_bytes() and int(path.name) != os.getpid():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    """How folders of clusters that a run starts itself begin in this test."""
    begins = f"fk{os.getpid()}-"
    monkeypatch.setattr(connection, "FOLDER", begins)
    return begins


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


COMMAND = """
import sys
from pathlib import Path
from fedkeel.local.cluster import connection
from tests.helpers.clusters import ALONE, Fatal, trained

connection.FOLDER = sys.argv[1]
trained("scaffold", Fatal(Path(sys.argv[2])), ALONE, Path(sys.argv[3]))
"""


def test_a_run_that_is_killed_goes_on_and_leaves_no_process(own: str, tmp_path: Path) -> None:
    """With a cluster of its own."""
    kills, there = tmp_path / "kills", tmp_path / "there"
    kills.mkdir()
    here = trained("scaffold", Fatal(kills), SERIAL, tmp_path / "here")
    words = [sys.executable, "-c", COMMAND, own, str(kills), str(there)]
    with subprocess.Popen(words, cwd=ROOT) as running:
        try:
            until(lambda: (there / "rounds.jsonl").exists() and b"\n" in (there / "rounds.jsonl").read_bytes())
            assert processes_of(own)
        finally:
            running.kill()
    until(lambda: not processes_of(own))
    result = resume(there, data=federation.data(), model=Fatal(kills), tell=lambda _: None)
    assert torch.equal(FlatModel(here.model).w, FlatModel(result.model).w)
    assert history(tmp_path / "here") == history(there)
    assert not processes_of(own)
    assert not [name for name in os.listdir("/tmp") if name.startswith(own)]


STARTING = """
import signal, sys
from fedkeel.local.cluster import connection
from fedkeel.runner.stopping import Stop
from tests.helpers.clusters import ALONE, trained
from tests.helpers import federation

connection.FOLDER = sys.argv[1]
package = connection.package


def starting():
    ray = package()
    from ray._private.node import Node

    start = Node.start_head_processes

    def begin(node):
        start(node)
        signal.raise_signal(signal.SIGTERM)

    Node.start_head_processes = begin
    return ray


connection.package = starting
stop = Stop()
with stop.on_signals(print):
    try:
        trained("fedavg", federation.net(), ALONE, sys.argv[2])
    except KeyboardInterrupt:
        sys.exit(stop.code)
"""


def test_a_run_that_is_stopped_while_its_cluster_starts_leaves_nothing(own: str, tmp_path: Path) -> None:
    """The signal is heard when the cluster is there and can be ended; Ray would end the process with code 15."""
    words = [sys.executable, "-c", STARTING, own, str(tmp_path / "out")]
    ended = subprocess.run(words, cwd=ROOT, timeout=120, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    until(lambda: not processes_of(own))
    assert not [name for name in os.listdir("/tmp") if name.startswith(own)]
