"""Sites that are restarted in the middle of a run, with the same settings and data or with others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkeel.deploy.prepared import Project
from fedkeel.deploy.silo import Silo
from fedkeel.deploy.site import Site
from fedkeel.world.remote import roster
from fedkeel.world.remote.loopback import Loopback
from tests.helpers import deployed, faulty

LOAD = """
import numpy as np


def load(site):
    rng = np.random.default_rng(site.number)
    x = rng.normal(size=(40 if site.data is None else 80, 3))
    return x, (x[:, 0] > 0).astype(int)
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "AGAIN", 0.2)
    monkeypatch.setattr(roster, "LOOK", 0.05)


def project(folder: Path, **settings: Any) -> Path:
    deploy = {"retries": 1, "absent_seconds": 1}
    app = deployed.project(folder, 2, deploy, **{"partition": "iid", "rounds": 4, "algorithm": "scaffold", **settings})
    (app / "data.py").write_text(LOAD)
    return app


def restarted(folder: Path, data: Path | None = None, **there: Any) -> tuple[faulty.Told, list[str], list[bytes]]:
    """(A run whose second site is another process after its first job, what that tells, what it answers)."""
    app, other = project(folder / "app"), project(folder / "other", **there)
    site, answers = list[str](), list[bytes]()
    with deployed.own_modules(app), deployed.own_modules(other):
        loaded = Project.load(other)
        nodes = deployed.silos(app)
        second = Silo(loaded, Site.of(loaded, "site-1", data), app / "state" / "site-1", site.append)
        jobs = 0

        def answer(body: bytes) -> bytes:
            nonlocal jobs
            jobs += faulty.kind(body) == "train"
            if jobs < 2:
                return nodes[2](body)
            answers.append(second.answer(body))
            return answers[-1]

        told = faulty.run(app, folder / "run", Loopback({1: nodes[1], 2: answer}))
    return told, site, answers


def updates(told: faulty.Told) -> list[int]:
    """The rounds of the second site."""
    return [row["round"] for row in told.rows("clients") if row["client"] == 1]


CHANGED = "site-1 has other settings or data than when it joined"
COMPLETE = "the run is complete; site-1 waits for the next one"


@pytest.mark.slow
def test_an_equal_one_goes_on_and_nobody_notices(tmp_path: Path) -> None:
    told, site, answers = restarted(tmp_path)
    assert {faulty.kind(each) for each in answers} == {"done", "scores", "ok"}
    assert site == ["site-1 takes part", COMPLETE]
    assert told.rows("unfinished") == []
    undisturbed = faulty.run(project(tmp_path / "again"), tmp_path / "whole")
    deployed.assert_equal(deployed.weights(told.folder), deployed.weights(undisturbed.folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "differs"),
    [
        ({"local": {**deployed.SETTINGS["local"], "momentum": 0.5}}, "local.momentum is 0.5 at the site and 0.0 at"),
        ({"model": "mlp-400"}, "the number of weights is"),
    ],
    ids=["momentum", "model"],
)
def test_other_settings_are_refused(there: dict[str, Any], differs: str, tmp_path: Path) -> None:
    told, site, answers = restarted(tmp_path, **there)
    assert updates(told) == [1]
    assert "done" not in map(faulty.kind, answers)
    assert any(f"site-1 cannot take part: {differs}" in line for line in told.lines)
    assert site[0] == f"{CHANGED}; the server checks them"
    assert site[1].startswith(f"the server refuses site-1: {differs}")


@pytest.mark.slow
def test_other_data_of_the_same_kind_are_taken_and_count_anew(tmp_path: Path) -> None:
    told, site, _ = restarted(tmp_path, data=tmp_path)
    assert "site-1 is here, 32 samples" in told.lines
    assert "site-1 is back, 64 samples" in told.lines
    assert site == [f"{CHANGED}; the server checks them", "site-1 takes part", COMPLETE]
    assert updates(told) == [1, 2, 3, 4]
    assert [row["steps"] for row in told.rows("clients") if row["client"] == 1] == [4, 8, 8, 8]
    assert told.rows("refused") == []


def losing(folder: Path, harm: Callable[[Path], None], **settings: Any) -> tuple[faulty.Told, list[str]]:
    """(A run whose second site finds its states harmed at its third job, what that site tells its people)."""
    app, site, jobs = project(folder / "app", **settings), list[str](), 0
    with deployed.own_modules(app):
        loaded, nodes = Project.load(app), deployed.silos(app)
        second = Silo(loaded, Site.of(loaded, "site-1", None), app / "state" / "site-1", site.append)

        def answer(body: bytes) -> bytes:
            nonlocal jobs
            trains = faulty.kind(body) == "train"
            jobs += trains
            for path in (app / "state" / "site-1").glob("*/kept-*.msg") if trains and jobs == 3 else ():
                harm(path)
            return second.answer(body)

        told = faulty.run(app, folder / "run", Loopback({1: nodes[1], 2: answer}))
    return told, site


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:100])])
def test_a_state_that_is_lost_is_told_at_the_site_by_the_server_and_in_the_record(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    told, site = losing(tmp_path, harm)
    (job,) = told.summary["deployment"]["sites"][1]["began_anew"]
    sentence = f"site-1 has lost what it kept after job {job}"
    assert [line for line in told.lines if "lost" in line] == [f"{sentence}; it begins anew"]
    (said,) = [line for line in site if "lost" in line]
    assert said.startswith(f"{sentence}, or it is damaged; it begins anew, and the result is another (see ")
    assert told.summary["deployment"]["missing"] == [f"{sentence}, and began anew"]
    assert updates(told) == [1, 2, 3, 4]


def test_a_method_that_keeps_nothing_loses_nothing(tmp_path: Path) -> None:
    told, site = losing(tmp_path, Path.unlink, algorithm="fedavg")
    assert not [line for line in (*told.lines, *site) if "lost" in line]
    assert told.summary["deployment"]["missing"] == []


@pytest.mark.slow
def test_a_loss_is_still_known_when_the_server_was_started_again(tmp_path: Path) -> None:
    app = project(tmp_path / "app")
    with deployed.own_modules(app):
        nodes = deployed.silos(app)

    def harmed() -> None:
        for path in (app / "state" / "site-1").glob("*/kept-*.msg"):
            path.unlink()

    for point in (5, 3):
        with pytest.raises(faulty.KilledError):
            faulty.run(app, tmp_path / "run", faulty.Mortal(nodes, point, kind="train"))
        harmed()
    told = faulty.run(app, tmp_path / "run", Loopback(nodes))
    assert len(told.summary["deployment"]["sites"][1]["began_anew"]) == 2
