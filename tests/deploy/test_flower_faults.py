"""Faults of nodes and links, one after the other, in deployments over Flower on this machine with TLS and keys."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedkeel import Experiment, api
from fedkeel.deploy.replaying import replay
from tests.helpers import links
from tests.helpers.deployed import assert_equal, weights
from tests.helpers.deploying import LONGEST, Federation, commands, federation, new_app
from tests.helpers.links import Cable
from tests.helpers.repository import ROOT

pytestmark = [pytest.mark.extras, pytest.mark.slow]
SITES = ("site-1", "site-2", "site-3")
LONGER = (
    "dataset.train_limit=300", "dataset.test_limit=100", "partition=dirichlet", "model=mlp-400", "local.epochs=20",
    "local.batch_size=16", "threads=1",
)  # fmt: skip
"""Jobs of a second or so, in which something can happen."""


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], bool]:
    """Whether the node with a command line waits for its silo."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script: Any = importlib.import_module("kill_deployments")
    found: Callable[[str], bool] = script.at_work
    return found


def busy(here: Federation, site: str, at_work: Callable[[str], bool], *program: str) -> int:
    """Wait until a site works on a message; one of its processes."""
    those, found = here.those, list[int]()

    def so() -> bool:
        assert those.running["server"].poll() is None, those.said("server")
        found[:] = those.left(str(here.state(site)), *program)
        node = [each for each in those.left(str(here.state(site)), "silo") if at_work(those.line(each))]
        return bool(found and node)

    those.until(so, LONGEST)
    return found[0]


def test_links_that_fail_and_a_site_that_is_killed_change_nothing(
    at_work: Callable[[str], bool], tmp_path: Path
) -> None:
    """All messages of the third site come twice; then come the other faults, in one round or more each."""
    app = tmp_path / "app"
    limits = {"least_job_seconds": 200, "absent_seconds": 200, "retries": 9}
    new_app(app, 3, [*LONGER, "algorithm=scaffold", "rounds=8"], limits)
    expected = api.run(Experiment.load(app / "experiment.yaml")).model.state_dict()
    with commands(tmp_path) as those:
        here = federation(those, app, SITES)
        with Cable(here.port) as first, Cable(here.port) as second:
            server = here.server("--fast")
            here.node("site-1", "--fast", address=first.address)
            here.node("site-2", "--fast", address=second.address)
            hook = "fedkeel.world.flower.fleetnode=tests.helpers.links:double"
            here.node("site-3", "--fast", hook=hook, **{links.COUNT: str(tmp_path / "doubled")})

            here.until_round(1)
            busy(here, "site-1", at_work)
            first.cut()
            time.sleep(3)  # its answer finds no way
            first.mend()
            after = len(here.rows("rounds"))

            second.slow = 0.05
            here.until_round(after + 2)  # in one of them, job and answer were slow
            second.slow = 0.0

            busy(here, "site-1", at_work)
            os.kill(those.running["site-1"].pid, signal.SIGKILL)
            those.until(lambda: not those.left(str(here.state("site-1"))), 60)
            here.node("site-1", "--fast", address=first.address)

            those.until(lambda: server.poll() is not None, LONGEST)
            assert server.returncode == 0, those.said("server")
            assert first.broken
            assert first.refused
            assert second.slowed > 20
    assert (tmp_path / "doubled").stat().st_size > 20
    assert here.rows("unfinished") == here.rows("refused") == []
    assert [row["arrived"] for row in here.rows("rounds")] == [3] * 8
    assert_equal(weights(here.out), expected)


def test_what_dies_on_stock_nodes_or_leaves_is_recorded(at_work: Callable[[str], bool], tmp_path: Path) -> None:
    """A node comes late, a relay and a SuperNode are killed in the middle of their jobs, and a site leaves for good."""
    app = tmp_path / "app"
    limits = {"wait_for": 2, "job_seconds": 30, "absent_seconds": 20, "record_uploads": True}
    new_app(app, 3, [*LONGER, "rounds=6"], limits)
    with commands(tmp_path) as those:
        here = federation(those, app, SITES)
        server = here.server()
        here.node("site-1")
        here.node("site-2")
        here.until_round(1)
        here.node("site-3", "--fast")
        those.until(lambda: 2 in [row["client"] for row in here.rows("clients")], LONGEST)
        busy(here, "site-3", at_work)
        those.stop("site-3")
        os.kill(busy(here, "site-1", at_work, "flwr-clientapp"), signal.SIGKILL)
        os.kill(busy(here, "site-2", at_work, "flower-supernode"), signal.SIGKILL)
        those.until(lambda: server.poll() is not None, LONGEST)
        assert server.returncode == 0, those.said("server")
    rounds, clients, lost = here.rows("rounds"), here.rows("clients"), here.rows("unfinished")
    assert [row["round"] for row in rounds] == [1, 2, 3, 4, 5, 6]
    for row in rounds:
        assert row["arrived"] == len([each for each in clients if each["round"] == row["round"]])
        assert row["lost"] == len([each for each in lost if each["round"] == row["round"]])
    late = [row["round"] for row in clients if row["client"] == 2]
    (left,) = [row for row in lost if row["client"] == 2]
    assert 1 < late[0] <= late[-1] < left["round"]
    assert left["why"].startswith("failed: the node is not available")
    assert {row["client"] for row in clients if row["round"] == 1} == {0, 1}
    assert here.rows("refused") == []
    assert replay(here.out, app).equal  # everything that came about is in the record
