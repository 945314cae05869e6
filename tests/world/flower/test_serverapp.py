"""The ServerApp: what `serve` gets, and how it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.superlink.grid import HttpGrid

from fedkeel.deploy.serving import serve as real_serve
from fedkeel.errors import FedkeelError, InputError
from fedkeel.runner import recorder
from fedkeel.runner.stopping import Stop
from fedkeel.world.flower.grid import GridTransport
from fedkeel.world.flower.serverapp import Serve, serverapp
from fedkeel.world.remote.loopback import Loopback
from fedkeel.world.remote.transport import Reply
from tests.helpers import deployed, faulty

pytestmark = pytest.mark.extras

SIGNALLED = """
import os, signal, sys, time
from flwr.app import Context, RecordDict
from flwr.superlink.grid import HttpGrid
from fedkeel.world.flower.serverapp import serverapp

def flowers(number, _):
    print("Flower hears", number, flush=True)
    sys.exit(5)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, flowers)

def serve(transport, app, out, started, *, stop):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)  # impatience
        print("in good order", flush=True)

grid = HttpGrid("127.0.0.1:1", insecure=True, token="x")
context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"app": "a", "out": "b"})
serverapp(serve)(grid=grid, context=context)
"""


def called(serve: Serve, settings: dict[str, Any] | None = None) -> None:
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(),
        run_config={"app": "/app", "out": "/out"} if settings is None else settings,
    )  # fmt: skip
    serverapp(serve)(grid=HttpGrid("127.0.0.1:1", insecure=True, token="x"), context=context)


def test_it_gets_a_transport_and_both_folders() -> None:
    got: list[Any] = []
    called(lambda *given, **_: got.append(given))
    called(lambda *given, **_: got.append(given), {"app": "/app", "out": "/out", "interrupts": True, "started": 3})
    transport, app, out, started = got[0]
    assert isinstance(transport, GridTransport)
    assert (app, out, started) == (Path("/app"), Path("/out"), None)
    assert [each[0].interrupts for each in got] == [False, True]
    assert got[1][3] == 3


@pytest.mark.parametrize("settings", [{}, {"app": "/a"}, {"app": "", "out": "/o"}, {"app": "/a", "out": 1}])
def test_without_folders_nothing_begins(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be a folder; start it with flwr run --run-config"):
        called(lambda *_, **__: pytest.fail("it began"), settings)


@pytest.mark.parametrize("error", [FedkeelError("no good"), ZeroDivisionError("no good")])
def test_an_error_is_in_the_log_and_ends_the_run(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def serve(*_: Any, **__: Any) -> None:
        raise error

    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)  # Flower's logger does not pass on what it gets
    try:
        with pytest.raises(type(error)):
            called(serve)
    finally:
        logger.removeHandler(caplog.handler)
    assert "fedkeel: " in caplog.text
    assert "no good" in caplog.text


def test_handlers_of_signals_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    called(lambda *_, **__: None)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_ends_it_in_good_order_and_then_goes_to_flower() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False, timeout=60, env={**os.environ}
    )
    assert done.stdout.splitlines() == ["in good order", f"Flower hears {signal.SIGTERM}"]
    assert done.returncode == 5
    assert "the run was stopped" in done.stderr


def test_a_signal_saves_the_rounds_that_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where checkpoints are seldom."""
    app = faulty.project(tmp_path / "app", rounds=6, checkpoint={"rounds": 100})
    monkeypatch.setattr(recorder, "SELDOM", 0)
    rounds, heard = tmp_path / "run" / "rounds.jsonl", list[int]()

    class Stopped(Loopback):
        def poll(self) -> list[Reply]:
            if rounds.exists() and rounds.read_text().count("\n") == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().poll()

    def serve(*_: Any, stop: Stop) -> None:
        with deployed.own_modules(app):
            transport = Stopped(deployed.silos(app))
            try:
                real_serve(transport, app, tmp_path / "run", tell=lambda _: None, stop=stop)
            finally:
                transport.close()

    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))  # Flower's
    try:
        called(serve)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    saved = [int(path.name.removeprefix("round-")) for path in (tmp_path / "run" / "checkpoint").glob("round-*")]
    assert max(saved) >= 3
    told = faulty.run(app, tmp_path / "run")
    deployed.assert_equal(deployed.weights(told.folder), deployed.simulated(app).model.state_dict())
