"""Faults of the link between a node and the SuperLink: it is cut, slowed, or requests come twice."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import AbstractContextManager, suppress

COUNT = "FEDKEEL_TEST_COUNT"
"""A variable with the path of a file that grows by a byte for each request that was doubled."""
_PIECE = 1 << 16


class Cable(AbstractContextManager["Cable"]):
    """Passes bytes on between a port of its own and another one, whatever they are; with TLS, too."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut = False
        self.slow = 0.0
        """Seconds that each piece of at most 64 kB takes."""
        self.refused = self.broken = self.slowed = 0
        """Connections that came while it was cut, those that it broke, and pieces that were slow."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """For the node."""
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        with self._lock:
            self._cut = True
            self.broken += len(self._open) // 2
            for line in self._open:
                _reset(line)
            self._open.clear()

    def mend(self) -> None:
        """Take connections again."""
        self._cut = False

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self._cut:
                self.refused += 1
                _reset(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # nobody is there yet
                _reset(near)
                continue
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(_PIECE):
                if self.slow:
                    self.slowed += 1
                    time.sleep(self.slow)
                other.sendall(piece)
        with self._lock:
            for line in (one, other):
                self._open.discard(line)
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)


def _reset(line: socket.socket) -> None:
    """Close it without a goodbye."""
    with suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.shutdown(socket.SHUT_RDWR)
    line.close()


def double() -> None:
    """From now on, this process sends each request over HTTP twice; the answer is the longer one of the good ones."""
    import httpx

    usual = httpx.HTTPTransport.handle_request

    def once(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        came = usual(self, request)
        try:
            body = b"".join(came.stream)  # type: ignore[arg-type]
        finally:
            came.close()
        return httpx.Response(came.status_code, headers=came.headers, content=body)

    def twice(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        first, second = once(self, request), once(self, request)
        with open(os.environ[COUNT], "ab") as file:
            file.write(b".")
        return max([each for each in (first, second) if each.is_success] or [first], key=lambda each: len(each.content))

    httpx.HTTPTransport.handle_request = twice  # type: ignore[method-assign]
