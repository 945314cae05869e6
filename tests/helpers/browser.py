"""A browser's side of a live page: requests over real sockets, and a reader of an event stream."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any, Self

from fedkeel.report.live.server import LiveServer, serve

PATIENCE = 60
"""Seconds until a test that waits in vain fails."""


@contextmanager
def served(*paths: Path, port: int = 0) -> Iterator[LiveServer]:
    """A server that answers, in a thread."""
    with serve(paths, port) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def ask(server: LiveServer, path: str = "/", method: str = "GET", **headers: str) -> Answer:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())
    finally:
        connection.close()


def raw(server: LiveServer, request: bytes) -> bytes:
    """The whole answer to something that need not be a request."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@dataclass(frozen=True)
class Event:
    name: str
    tag: str
    data: Any


class Stream:
    """Reads events one by one; closed as a context manager."""

    def __init__(self, server: LiveServer, seen: str | None = None) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
        self._connection.request("GET", "/events", headers={"Last-Event-ID": seen} if seen else {})
        self.response: HTTPResponse = self._connection.getresponse()
        self.status = self.response.status
        self._tag = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        beats = 0
        for line in self.response:
            name, _, value = line.decode().rstrip("\n").partition(":")
            if not line.strip():
                self._tag = fields.get("id", self._tag)
                if "data" in fields:
                    beats = 0
                    yield Event(fields.get("event", "message"), self._tag, json.loads(fields["data"]))
                fields = {}
            elif name:
                fields[name] = value.removeprefix(" ")
            else:
                beats += 1
                assert beats < 4, "no event came"
