"""A web server on this machine with files that a test gives it, and a guard against all other hosts."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = Callable[["Handler", bytes], None]
"""Answers a request for a file, given the handler and the file's content."""


@dataclass
class Server:
    """Serves `files` by path; `answers` replaces the usual answer for a path, once for each one in its list."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """The path and the range of every request."""

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]


class Handler(BaseHTTPRequestHandler):
    """Knows ranges, as all good mirrors do."""

    state: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.state.requests.append((self.path, asked))
        content = self.state.files.get(self.path)
        answers = self.state.answers.get(self.path)
        if answers:
            answers.pop(0)(self, content or b"")
        elif content is None:
            self.send_error(404)
        else:
            whole(self, content)

    def begin(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def whole(handler: Handler, content: bytes) -> None:
    """The file, or the part of it that was asked for."""
    asked = handler.headers.get("Range")
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
    if asked and start >= len(content):
        handler.begin(416, 0)
    elif asked:
        last = len(content) - 1
        handler.begin(206, len(content) - start, Content_Range=f"bytes {start}-{last}/{len(content)}")
        handler.wfile.write(content[start:])
    else:
        handler.begin(200, len(content))
        handler.wfile.write(content)


def without_ranges(handler: Handler, content: bytes) -> None:
    """The whole file, whatever was asked for."""
    handler.begin(200, len(content))
    handler.wfile.write(content)


def cut_after(count: int) -> Answer:
    """Promises everything, and hangs up early."""

    def answer(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(content))
        handler.wfile.write(content[:count])
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)

    return answer


def error(status: int) -> Answer:
    return lambda handler, _: handler.send_error(status)


def moved(to: str) -> Answer:
    return lambda handler, _: handler.begin(302, 0, Location=to)


def other(content: bytes, kind: str = "application/octet-stream", length: bool = True) -> Answer:
    """Something else than the file."""

    def answer(handler: Handler, _: bytes) -> None:
        handler.begin(200, len(content) if length else None, Content_Type=kind)
        handler.wfile.write(content)

    return answer


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a port of its own, which ends with the block."""
    handler = type("OwnHandler", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.state = Server(f"http://127.0.0.1:{server.server_port}/")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield handler.state  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


def closed_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def only_loopback(patch: pytest.MonkeyPatch) -> None:
    """Any connection to another machine fails the test."""
    for name in ("connect", "connect_ex"):
        real = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, real: Callable[..., Any] = real) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(str(address[0])):
                raise AssertionError(f"a test tried to reach {address}")
            return real(self, address)

        patch.setattr(socket.socket, name, guarded)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
