"""The events of a run, fed to a new server: also where sites come late, and where the server was started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkeel.deploy import serving
from fedkeel.deploy.deployment import Deployment
from fedkeel.deploy.journal import BEGIN, FILE, read
from fedkeel.deploy.replaying import replay
from fedkeel.errors import FedkeelError
from fedkeel.world.remote import roster
from fedkeel.world.remote.loopback import Loopback
from fedkeel.world.remote.transport import Reply
from tests.helpers import deployed, faulty
from tests.helpers.faulty import KilledError, Mortal


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "AGAIN", 0.2)
    monkeypatch.setattr(roster, "LOOK", 0.05)


class Late(Loopback):
    """What the third node answers comes when somebody opens the gate."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.held: list[Reply] = []
        self.open = False

    def poll(self) -> list[Reply]:
        came = super().poll()
        self.held += [reply for reply in came if reply.node == 3]
        found = [reply for reply in came if reply.node != 3]
        if self.open:
            found, self.held = [*found, *self.held], []
        return found


def test_a_site_that_comes_when_the_server_is_built_but_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASO-Fed computes with the sizes of all sites when the server is built."""
    app = deployed.project(
        tmp_path / "app", 3, {"wait_for": 2, "record_uploads": True, "join_seconds": 600},
        **{**faulty.SMALL, "rounds": 2, "algorithm": "asofed", "schedule": {"trigger_seconds": 0.05}},
    )  # fmt: skip
    with deployed.own_modules(app):
        link = Late(deployed.silos(app))
    folder = serving._folder

    def opened(run: Deployment, *given: Any) -> Any:
        link.open = True
        while run._roster.node(2) is None:
            run._roster.look()
            for reply in link.poll():
                run._roster.take(reply)
        return folder(run, *given)

    monkeypatch.setattr(serving, "_folder", opened)
    told = faulty.run(app, tmp_path / "run", link)
    first, second = (message for message, _ in zip(read(told.folder / FILE), range(2), strict=False))
    assert first.kind == BEGIN
    assert first.facts["samples"] != second.facts["samples"]
    found = replay(told.folder)
    assert (found.equal, found.rounds) == (True, 2)
    assert found.events == len([*read(told.folder / FILE)]) - 1


@pytest.mark.parametrize("method", ["scaffold", "fedbuff"])
def test_a_run_that_was_resumed_in_its_middle(method: str, tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", method, deploy={"record_uploads": True})
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    with pytest.raises(KilledError):
        faulty.run(app, tmp_path / "run", Mortal(nodes, pushes=6, kind="train"))
    told = faulty.run(app, tmp_path / "run", Loopback(nodes))
    assert any("goes on" in line for line in told.lines), told.lines
    found = replay(told.folder)
    assert (found.equal, found.rounds) == (True, 3)


def test_a_record_without_its_beginning_is_refused(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", deploy={"record_uploads": True}, rounds=1)
    told = faulty.run(app, tmp_path / "run")
    records = (told.folder / FILE).read_bytes()
    (told.folder / FILE).write_bytes(records[8 + int.from_bytes(records[:8], "big") :])
    with pytest.raises(FedkeelError, match="does not begin with the start of a run"):
        replay(told.folder)
