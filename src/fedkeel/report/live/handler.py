"""Answers to browsers: the page, its digest, and a stream of newer digests; nothing else."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from fedkeel.report.live.crowd import Crowd
from fedkeel.report.live.snapshot import Snapshot
from fedkeel.report.live.watch import Watch
from fedkeel.report.page.html import policy

HOST = re.compile(r"(localhost|127\.0\.0\.1)(:\d{1,5})?", re.IGNORECASE)
"""Another name that leads here is that of a foreign page, which must not read what is here (DNS rebinding)."""
OWN = (None, "same-origin", "none")
"""What a browser says of who asks (Sec-Fetch-Site), where that is this page or the user."""
UNFRAMED = "frame-ancestors 'none'"
NOTHING = f"default-src 'none'; base-uri 'none'; form-action 'none'; {UNFRAMED}"
"""What a browser may do with an answer that is no page."""
CLIENT_SECONDS = 30.0
"""For how long a client may keep us from reading or writing."""
BEAT_SECONDS = 10.0
"""Between two signs of life in a stream."""
LOOK_SECONDS = 0.5
"""Between two looks whether the reader of a stream is still there."""
RETRY_MS = 2000
"""After which a browser asks again when a stream broke off."""


class Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    protocol_version = "HTTP/1.1"
    timeout = CLIENT_SECONDS

    def __init__(self, *connection: Any, watch: Watch, crowd: Crowd) -> None:
        self.watch, self.crowd = watch, crowd
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Answer with content."""
        self._answer(content=True)

    def do_HEAD(self) -> None:
        """Answer with headers alone."""
        self._answer(content=False)

    def __getattr__(self, name: str) -> Callable[[], None]:
        """All other methods are refused alike."""
        if name.startswith("do_"):
            return self._refuse_method
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: the terminal may show the progress of a run."""

    def version_string(self) -> str:
        """Name no version of Python."""
        return "fedkeel"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request in the same form as all else."""
        status = HTTPStatus(code)
        self._say(status, status.phrase)

    def _answer(self, content: bool) -> None:
        hosts = self.headers.get_all("Host") or []
        path = self.path.partition("?")[0]
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0].strip()):
            self._say(HTTPStatus.FORBIDDEN, "the page is at http://127.0.0.1 or http://localhost only")
        elif self.crowd.too_many:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", ("Retry-After", "5"))
        elif path not in ("/", "/events", "/digest.json"):
            self._say(HTTPStatus.NOT_FOUND, "there is only /, /events and /digest.json")
        elif path != "/" and self.headers.get("Sec-Fetch-Site") not in OWN:
            self._say(HTTPStatus.FORBIDDEN, "only the page itself may ask for this")
        elif path == "/events":
            self._stream(content)
        else:
            self._document(path, content)

    def _document(self, path: str, content: bool) -> None:
        newest = self.watch.newest
        if path == "/":
            kind, body, rules = "text/html; charset=utf-8", newest.page, f"{policy(live=True)}; {UNFRAMED}"
        else:
            kind, body, rules = "application/json", newest.digest, NOTHING
        self._begin(HTTPStatus.OK, kind, rules, ("Content-Length", str(len(body))))
        if content:
            self.wfile.write(body)

    def _refuse_method(self) -> None:
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here", ("Allow", "GET, HEAD"))

    def _say(self, status: HTTPStatus, what: str, *headers: tuple[str, str]) -> None:
        body = f"{what}\n".encode()
        self._begin(status, "text/plain; charset=utf-8", NOTHING, ("Content-Length", str(len(body))), *headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str, rules: str, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", rules),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Connection", "close"),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True

    def _stream(self, content: bool) -> None:
        self._begin(HTTPStatus.OK, "text/event-stream", NOTHING)
        if content:
            self.wfile.write(f"retry: {RETRY_MS}\n\n".encode())
            self._send_digests(self.headers.get("Last-Event-ID", ""))

    def _send_digests(self, seen: str) -> None:
        """Each newest digest once; those that came while we wrote are passed over.

        The stream stays open when all runs are finished: somebody may add runs to a comparison.
        """
        beat = time.monotonic() + BEAT_SECONDS
        while not self.watch.stopped and not self._gone():
            newest = self.watch.wait(seen, LOOK_SECONDS)
            if newest is not None:
                self.wfile.write(_event(newest))
                seen = newest.tag
            elif time.monotonic() >= beat:
                self.wfile.write(b": still here\n\n")
            else:
                continue
            beat = time.monotonic() + BEAT_SECONDS

    def _gone(self) -> bool:
        """Whether the reader closed the connection."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)


def _event(snapshot: Snapshot) -> bytes:
    return b"id: %b\nevent: digest\ndata: %b\n\n" % (snapshot.tag.encode(), snapshot.digest)
