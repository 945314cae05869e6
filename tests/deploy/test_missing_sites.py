"""Sites that are not there: who took part is told in rows, in the summary and at the end of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fedkeel.cli import console
from fedkeel.cli import deployed as shown
from fedkeel.record.runs import RunRecord
from fedkeel.record.sites import Site, missing, sites
from fedkeel.world.remote import roster
from fedkeel.world.remote.loopback import Handler, Loopback
from tests.helpers import deployed, faulty
from tests.helpers.faulty import KilledError, Mortal, kind

LOAD = """
import numpy as np


def load(site):
    rng = np.random.default_rng(site.number)
    x = rng.normal(size=(40 + 20 * site.number, 3))
    return x, (x[:, 0] > 0).astype(int)
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "AGAIN", 0.2)
    monkeypatch.setattr(roster, "LOOK", 0.0)


def project(folder: Path, wait_for: int = 2, **settings: object) -> Path:
    """Three sites with arrays of their own, of which two are enough; they test the model."""
    app = deployed.project(folder, deploy={"wait_for": wait_for}, partition="iid", rounds=4, **settings)
    (app / "data.py").write_text(LOAD)
    return app


def leaving(transport: Loopback, node: int, tests: int) -> Handler:
    """Is gone as soon as it has tested so many models."""
    inner, left = transport.handlers[node], tests

    def answer(body: bytes) -> bytes:
        nonlocal left
        told, left = inner(body), left - (kind(body) == "evaluate")
        if not left:
            transport.handlers.pop(node, None)
        return told

    return answer


def test_who_took_part_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = project(tmp_path / "app", metrics=["accuracy", "f1"])
    with deployed.own_modules(app):
        transport = Loopback(deployed.silos(app))
    del transport.handlers[3]  # never there
    transport.handlers[2] = leaving(transport, 2, 2)
    told = faulty.run(app, tmp_path / "run", transport)
    assert [row["tested_by"] for row in told.rows("history")] == [[0, 1], [0, 1], [0], [0]]
    assert told.summary["deployment"]["sites"] == [
        asdict(Site("site-0", samples=32, updates=4, lost=0, tests=4, tested_last=True)),
        asdict(Site("site-1", samples=48, updates=2, lost=0, tests=2, tested_last=False)),
        asdict(Site("site-2", samples=None, updates=0, lost=0, tests=0, tested_last=False)),
    ]
    sentences = [
        "no update came from site-2",
        "the last test is without site-1 and site-2",
        "site-1 trained in 2 of 4 rounds",
    ]
    assert told.summary["deployment"]["missing"] == sentences
    assert json.loads((told.folder / "summary.json").read_text())["deployment"]["missing"] == sentences
    console.console.quiet = False
    shown.result(told.folder, told.folder / "learning_curve.png", 3.0)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    value = f"{told.summary['accuracy']:.2%}"
    assert f"final accuracy {value}, tested by 1 of 3 sites" in lines
    assert f"final f1 {told.summary['f1']:.2%}, tested by 1 of 3 sites" in lines
    assert {f"warning {sentence}" for sentence in sentences} <= {*lines}
    assert "site samples updates lost tests accuracy f1" in lines
    assert f"site-0 32 4 0 4 {value} {told.summary['f1']:.2%}" in lines
    assert "site-1 48 2 0 2 - -" in lines
    assert "site-2 - 0 0 0 - -" in lines


def test_a_resumed_run_counts_what_was_before(tmp_path: Path) -> None:
    app = project(tmp_path / "app", wait_for=3)
    with deployed.own_modules(app):
        first, second = Mortal(deployed.silos(app), 3, kind="train"), Loopback(deployed.silos(app))
    with pytest.raises(KilledError):  # as it sends the first job of the second round
        faulty.run(app, tmp_path / "run", first)
    del second.handlers[3]
    told = faulty.run(project(tmp_path / "app"), tmp_path / "run", second)
    expected = Site("site-2", samples=64, updates=1, lost=0, tests=1, tested_last=False)
    assert told.summary["deployment"]["sites"][2] == asdict(expected)
    assert [site["updates"] for site in told.summary["deployment"]["sites"]] == [4, 4, 1]
    assert sites(RunRecord.read(told.folder))[2].samples == 64


def site(name: str, updates: int, tested_last: bool | None = None) -> Site:
    return Site(name, 10, updates, 0, None if tested_last is None else 1, tested_last)


def test_a_site_that_the_method_did_not_choose_is_not_blamed() -> None:
    assert missing([site("a", 3), site("b", 3)], 3) == []
    assert missing([site("a", 2), site("b", 1)], 3) == []  # one of them in each round
    assert missing([site("a", 3, True), site("b", 3, False)], 3) == ["the last test is without b"]
    assert missing([site("a", 0), site("b", 0), site("c", 3)], 3) == ["no update came from a and b"]
