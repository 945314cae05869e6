"""`fedkeel watch` of a deployment that goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fedkeel.report.live import handler, watch
from fedkeel.report.page.digest import digest
from fedkeel.study.adhoc import gather
from fedkeel.world.remote.loopback import Handler, Loopback
from tests.helpers import deployed, faulty
from tests.helpers.browser import Stream, ask, served
from tests.helpers.processes import ended, forked


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(handler, "LOOK_SECONDS", 0.05)


def told(seen: dict[str, Any]) -> list[tuple[str, int]]:
    """The names of the sites and how many updates they have sent."""
    return [(name, updates) for cell in seen["sites"] for name, _, updates, *_ in cell["sites"]]


def test_a_deployment_is_seen_while_it_goes_on(tmp_path: Path) -> None:
    app, out = faulty.project(tmp_path / "app", sites=2, rounds=3), tmp_path / "run"
    go_on, tell = os.pipe()

    def stepped(usual: Handler) -> Handler:
        """A site that begins a job when it is told to."""

        def answer(body: bytes) -> bytes:
            if faulty.kind(body) == "train":
                os.read(go_on, 1)
            return usual(body)

        return answer

    def serve() -> None:
        os.read(go_on, 1)
        with deployed.own_modules(app):
            nodes = deployed.silos(app)
        deployed.deployed(app, out, Loopback({**nodes, 1: stepped(nodes[1])}))

    process = forked(serve, tmp_path / "log")  # before anything runs in threads
    try:
        with served(out) as server, Stream(server) as stream:
            events = iter(stream)
            assert next(events).data["runs"] == {"all": 1, "not begun": 1}
            os.write(tell, b"x")
            for rounds in (1, 2):
                os.write(tell, b"x")
                expected = [("site-0", rounds), ("site-1", rounds)]
                seen = next(event.data for event in events if told(event.data) == expected)
                assert (seen["complete"], seen["runs"]) == (False, {"all": 1, "going on": 1})
                assert seen["figures"]["rounds"] == rounds
            assert b"<!doctype html>" in ask(server).body[:100]
            os.write(tell, b"x")
            assert ended(process) == 0
            process = 0
            last = next(event.data for event in events if event.data["complete"])
            assert last == json.loads(json.dumps(digest(gather([out]))))
            assert told(last) == [("site-0", 3), ("site-1", 3)]
    finally:
        if process:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        os.close(go_on)
        os.close(tell)
