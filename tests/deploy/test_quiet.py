"""`--quiet`: nothing is printed of a deployment that goes well, and everything that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkeel.cli.deploy import _complete, _teller
from fedkeel.deploy.settings import DeploySettings
from tests.helpers import deployed

BAD = [
    "Flower's superlink has ended (it was ended by SIGKILL); it is started again in 0.5 s",
    "the server function failed (KeyError); see told.log; it is run again in 1 s",
    "site-1 is not connected any more",
    "site-1 cannot take part: it calls itself north",
    "nodes cannot be reached (away); trying again",
]


@pytest.mark.parametrize("wait_for", ["all", 1])
def test_what_the_server_tells_of_a_run_is_not_printed(
    wait_for: str | int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, told = deployed.project(tmp_path / "app", sites=2, deploy={"wait_for": wait_for}, rounds=1), list[str]()
    deployed.deployed(app, tmp_path / "run", tell=told.append)
    assert [each for each in told if each.startswith("waiting for")]
    for sentence in (
        *told,
        "the server is up",
        "the server listens on 0.0.0.0:8000",
        "site-1 is back, 5 samples",
        "/run goes on after round 12",
    ):
        _teller(True)(sentence)
    assert capsys.readouterr() == ("", "")
    assert _complete(app, tmp_path / "run", quiet=True)
    assert capsys.readouterr() == ("", "")
    assert any(site in " ".join(told) for site in DeploySettings.load(app).sites)


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_wrong_is_printed(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    for sentence in ("the server is up", *BAD):
        _teller(quiet)(sentence)
    assert capsys.readouterr().err.splitlines() == [f"fedkeel: {each}" for each in ["the server is up", *BAD][quiet:]]
