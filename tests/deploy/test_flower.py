"""Deployments over Flower on this machine with TLS and keys: what comes out, and who is refused."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedkeel import Experiment, api
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.node import enroll
from fedkeel.deploy.programs import environment, free_port, program
from tests.helpers import pages
from tests.helpers.deployed import assert_equal, weights
from tests.helpers.deploying import LONGEST, TINY, Federation, commands, federation, new_app
from tests.helpers.repository import ROOT
from tests.helpers.tampered import TURNS

pytestmark = [pytest.mark.extras, pytest.mark.slow]
SEEDS, STUDENT = 8, 4.785
"""Simulations, and Student's t with one degree of freedom fewer, beyond which are 0.1 % on each side."""
ASYNCHRONOUS = (
    "dataset.train_limit=2000", "dataset.test_limit=500", "partition=dirichlet", "partition.alpha=5", "model=linear",
    "rounds=6", "local.epochs=4", "local.batch_size=16", "threads=1",
)  # fmt: skip
"""Clients are alike enough that seeds do not differ by much."""


def deployed(folder: Path, *options: str) -> Path:
    """The run folder of the project in `folder / "app"`."""
    out = folder / "run"
    with commands(folder) as those:
        running = those.start("local", "deploy", "local", str(folder / "app"), "--out", str(out), *options)
        those.until(lambda: running.poll() is not None, LONGEST)
        assert running.returncode == 0, those.said("local")
    return out


def test_the_first_commands_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default project over Flower's own nodes, and the simulation that gives the same file."""
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/deploy.md", "README.md"))
    first = next(text for kind, text in pages.blocks(page) if kind == "bash").splitlines()
    simulated = next(text for kind, text in pages.blocks(page) if kind == "console").splitlines()
    assert set(first) < {line.partition("#")[0].strip() for line in readme.splitlines()}
    monkeypatch.chdir(tmp_path)
    with commands(tmp_path) as those:
        for line in (*first, *simulated):
            words = shlex.split(line)
            if words[0] == "cd":
                monkeypatch.chdir(words[1])
            elif words[0] == "cmp":
                assert Path(words[1]).read_bytes() == Path(words[2]).read_bytes()
            else:
                name = " ".join(words[1:3])
                running = those.start(name, *words[1:])
                those.until(lambda running=running: running.poll() is not None, LONGEST)
                assert running.returncode == 0, those.said(name)
        assert words[0] == "cmp"
        told = re.sub(r"\d", "0", those.said("deploy local"))
    printed = re.search(r"It prints:\n\n```\n(.*?)```", page, re.DOTALL)
    assert printed is not None
    for line in printed[1].splitlines():
        assert re.sub(r"\d", "0", line.partition("  ")[0]) in told


@pytest.mark.parametrize("method", ["fedagg", "fedgh"])
def test_what_comes_out_is_the_simulations_bit_for_bit(method: str, tmp_path: Path) -> None:
    """The page's first commands show it for FedAvg, and tests of faults and kills for SCAFFOLD."""
    new_app(tmp_path / "app", 3, [*TINY, f"algorithm={method}"])
    out = deployed(tmp_path, "--fast")
    expected = api.run(Experiment.load(tmp_path / "app" / "experiment.yaml")).model.state_dict()
    if method == "fedgh":  # bodies stay on their sites
        head = {name: tensor for name, tensor in expected.items() if name.startswith("head")}
        assert_equal(weights(out, "header"), head)
    else:
        assert_equal(weights(out), expected)
    assert [json.loads(line)["arrived"] for line in (out / "rounds.jsonl").read_text().splitlines()] == [3, 3, 3]


@pytest.mark.parametrize(
    ("method", "more"),
    [("fedasmu", ["schedule.trigger_seconds=0.3", "schedule.busy_share=1.0"]), ("fedbuff", [])],
    ids=["fedasmu", "fedbuff"],
)
def test_asynchronous_methods_are_as_accurate_as_simulations(method: str, more: list[str], tmp_path: Path) -> None:
    """Who answers first is another one each time, so that weights differ; seeds of the simulation differ as well.

    With the same distribution, one in 500 deployments would be outside of the prediction interval.
    """
    new_app(tmp_path / "app", 4, [*ASYNCHRONOUS, f"algorithm={method}", *more])
    file = tmp_path / "app" / "experiment.yaml"
    found = [late(api.run(Experiment.load(file, [f"seed={seed}"])).history) for seed in range(SEEDS)]
    wide = STUDENT * stdev(found) * sqrt(1 + 1 / SEEDS)
    assert mean(found) - wide > 0.5, "one could also guess"
    out = deployed(tmp_path, "--fast")
    rows = [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]
    assert {row["client"] for row in rows} == {0, 1, 2, 3}
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 6
    assert bool([row for row in rows if row.get("merged") is not None]) is (method == "fedasmu")
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert abs(late(history) - mean(found)) < wide


def late(history: Sequence[Mapping[str, Any]]) -> float:
    """The mean accuracy after the last three rounds: that of one round depends on who came last."""
    return mean(row["accuracy"] for row in history[-3:])


def stranger(here: Federation, name: str, *options: str) -> None:
    """A node that has no silo, as it will get no message: Flower's own, or ours if its name says so."""
    link, home = ("--superlink", f"127.0.0.1:{here.port}"), here.those.folder / name
    words = [*link, "--silo", "none"] if name.endswith("own") else [*link, "--port", str(free_port())]
    own = (sys.executable, "-m", "fedkeel.world.flower.fleetnode")
    command = own if name.endswith("own") else (program("flower-supernode"),)
    here.those.program(name, *command, *words, *options, **environment(home))


def test_strangers_are_refused_and_told_why_while_the_others_go_on(tmp_path: Path) -> None:
    app = tmp_path / "app"
    new_app(app, 2, TINY, {"wait_for": 2})
    foreign = Keys(tmp_path / "foreign")
    foreign.make([])
    unknown, _ = enroll("stranger", tmp_path / "mine")
    with commands(tmp_path) as those:
        here = federation(those, app, ("site-1", "site-2"))
        ours, theirs = ("--root-certificates", str(here.keys.ca)), ("--root-certificates", str(foreign.ca))
        known = str(here.private["site-2"])
        server = here.server("--fast")
        here.node("site-1", "--fast")
        those.until(lambda: "listens on" in those.said("server"), 90)
        for kind, key in (("own", "--key"), ("stock", "--auth-supernode-private-key")):
            stranger(here, f"unknown {kind}", *ours, key, str(unknown))
            stranger(here, f"keyless {kind}", *ours)
            stranger(here, f"plain {kind}", "--insecure")
            stranger(here, f"deceived {kind}", *theirs, key, known)
        those.until(lambda: "the key may not be registered" in those.said("unknown own"), 90)
        those.until(lambda: "it takes only nodes with a registered key" in those.said("keyless own"), 90)
        those.until(lambda: "it may want TLS" in those.said("plain own"), 90)
        those.until(lambda: "is not trusted" in those.said("deceived own"), 90)
        for name in ("unknown", "keyless", "deceived"):
            those.until(lambda name=name: "Exit Code: 305" in those.said(f"{name} stock"), 90)
        for kind in ("own", "stock"):
            for name in ("unknown", "keyless", "plain", "deceived"):
                assert "onnected as node" not in those.said(f"{name} {kind}")
                those.stop(f"{name} {kind}")
        assert server.poll() is None
        here.node("site-2", key=unknown)
        those.until(lambda: "check that the server has the public key" in those.said("site-2"), 90)
        assert "takes part" not in those.said("site-2")
        those.stop("site-2")
        here.node("site-2", "--fast")
        those.until(lambda: server.poll() is not None, LONGEST)
        assert server.returncode == 0, those.said("server")
        assert "site-1 takes part" in those.said("site-1")
    told = json.loads((here.out / "deployment.json").read_text())
    assert set(told["nodes"]) == {"site-1", "site-2"}


def test_uploads_that_are_none_are_refused_while_the_other_site_goes_on(tmp_path: Path) -> None:
    """The first site sends what it should not, in every second job, through a node that is as it should be.

    It gets no job in the round after a refusal.
    """
    app, rounds = tmp_path / "app", 3 * len(TURNS) + 3
    settings = [each for each in TINY if not each.startswith("rounds=")]
    new_app(app, 2, [*settings, f"rounds={rounds}"], {"poll_seconds": 0.02})
    with commands(tmp_path) as those:
        here = federation(those, app, ("site-1", "site-2"))
        server = here.server("--fast")
        here.node("site-1", "--fast", hook="fedkeel.deploy.service=tests.helpers.tampered:install")
        here.node("site-2", "--fast")
        those.until(lambda: server.poll() is not None, LONGEST)
        assert server.returncode == 0, those.said("server")
    refused, clients = here.rows("refused"), here.rows("clients")
    assert [(row["client"], row["reason"]) for row in refused] == [(0, reason) for _, reason, _ in TURNS]
    for row, (_, _, detail) in zip(refused, TURNS, strict=True):
        assert re.search(detail, row["detail"]), row
    assert [row["round"] for row in clients if row["client"] == 1] == [*range(1, rounds + 1)]
    bad = {row["round"] for row in refused}
    assert len(bad) == len(TURNS)
    assert not bad & {row["round"] for row in clients if row["client"] == 0}
    assert all(each.isfinite().all() for each in weights(here.out).values())
