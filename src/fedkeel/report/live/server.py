"""A web server for this machine alone, which shows runs that are going on."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from fedkeel.config.files import reason
from fedkeel.errors import InputError
from fedkeel.report.live.crowd import Crowd
from fedkeel.report.live.handler import Handler
from fedkeel.report.live.sources import Sources
from fedkeel.report.live.watch import Watch

LOOPBACK = "127.0.0.1"
PORT = 8765
NEXT = 100
"""How many ports behind the one that is taken are tried."""
HIGHEST_PORT = 65_535


class LiveServer(ThreadingHTTPServer):
    """Serves the newest snapshot of a watch; a context manager, which ends both."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, watch: Watch, port: int = PORT) -> None:
        """Bind the port, or the next one that is free; 0 is any."""
        self.watch, self.crowd = watch, Crowd()
        answering = partial(Handler, watch=watch, crowd=self.crowd)
        super().__init__((LOOPBACK, port), answering, bind_and_activate=False)
        try:
            self._bind(port)
            self.server_activate()
        except BaseException:
            self.server_close()
            raise

    def server_bind(self) -> None:
        """Bind without asking who we are: the name of this machine plays no part, and to find it may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = LOOPBACK, self.socket.getsockname()[1]

    def _bind(self, port: int) -> None:
        if not 0 <= port <= HIGHEST_PORT:
            raise InputError(f"port must be 1 to {HIGHEST_PORT}, or 0 for any free port; got {port}")
        last = min(port + NEXT, HIGHEST_PORT)
        for number in range(port, last + 1):
            self.server_address = (LOOPBACK, number)
            try:
                return self.server_bind()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise InputError(
                        f"port {number} cannot be used ({reason(error)}); choose another port, or 0 for any free one"
                    ) from None
        raise InputError(f"ports {port} to {last} are all in use; choose another port, or 0 for any free one")

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread of its own, unless far too many have one."""
        if self.crowd.enter():
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Until the connection is closed."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.crowd.leave()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that is gone, or too slow, is no error of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def __enter__(self) -> Self:
        self.watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.stop()
        self.server_close()


def serve(paths: Sequence[Path], port: int = PORT) -> LiveServer:
    """A server that is bound and has its first snapshot; it begins to answer with `serve_forever`."""
    return LiveServer(Watch(Sources(tuple(paths))), port)
