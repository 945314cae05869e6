"""The ServerApp: Flower starts it for a run, and it drives the run through a transport."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkeel.errors import FedkeelError, InputError, StoppedError
from fedkeel.runner.stopping import Stop
from fedkeel.world.flower.grid import GridTransport
from fedkeel.world.remote.transport import Transport

_LOG = logging.getLogger("flwr")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
"""Flower sends the first one when somebody stops the run."""


class Serve(Protocol):
    """Drives a run."""

    def __call__(self, transport: Transport, app: Path, out: Path, started: int | None, *, stop: Stop) -> object:
        """Given what carries its messages, the folder of the app, the folder of the run, how many sites there are at
        all, if that is known, and whether it is to stop."""


def serverapp(serve: Serve) -> ServerApp:
    """Flower's app around `serve`, whose folders are `app` and `out` of the run's settings.

    `interrupts` of these settings says that all nodes are `fleetnode`s, and `started` how many sites there are (0: not
    known). A signal asks `serve` to stop: it saves the run. Before its first round, it is a KeyboardInterrupt there.
    Further signals change nothing.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder, out = _folder(context, "app"), _folder(context, "out")
        started = int(context.run_config.get("started", 0)) or None
        transport = GridTransport(grid, bool(context.run_config.get("interrupts", False)))
        try:
            with _stoppable() as stop:
                serve(transport, folder, out, started, stop=stop)
        except FedkeelError as error:
            _LOG.error("fedkeel: %s", error)
            raise
        except Exception:
            _LOG.exception("fedkeel: the run ended by an error")
            raise
        finally:
            transport.close()

    return app


def _folder(context: Context, key: str) -> Path:
    value = context.run_config.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(
            f"the run's setting {key} must be a folder; start it with flwr run --run-config '{key}=\"..\"'"
        )
    return Path(value)


@contextmanager
def _stoppable() -> Iterator[Stop]:
    """A signal asks the block to stop; then it goes on to Flower, which ends the process."""
    asked, stop = list[int](), Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # in Flower's simulation, nobody sends signals here
        return

    def handle(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if stop.heard:
            stop.asked = True
        elif len(asked) == 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    except (KeyboardInterrupt, StoppedError) as error:
        _LOG.warning("fedkeel: the run was stopped%s", f": {error}" if str(error) else "")
        if not asked:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked:
            signal.raise_signal(asked[0])
