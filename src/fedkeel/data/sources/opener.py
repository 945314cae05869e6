"""Opens addresses as urllib does, with its proxies and redirects, but HTTP only and with a short time to connect."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from functools import cache

CONNECT_SECONDS = 5.0
"""How long a host may take to accept a connection: mirrors that are out of reach are passed over quickly."""
READ_SECONDS = 30.0
"""How long a connected host may be silent."""


class _Patient(http.client.HTTPConnection):
    """Waits longer for data than for the connection."""

    def connect(self) -> None:
        """Connects, then allows for longer silences."""
        super().connect()
        self.sock.settimeout(READ_SECONDS)


class _PatientSecure(_Patient, http.client.HTTPSConnection):
    """The same with TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Patient, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PatientSecure, req, context=_context())


def opened(request: urllib.request.Request) -> http.client.HTTPResponse:
    """The answer to a request; raises URLError where there is no connection, HTTPError for a refusal."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Http(),
        _Https(),
    ):
        opener.add_handler(handler)
    response: http.client.HTTPResponse = opener.open(request, timeout=CONNECT_SECONDS)
    return response


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()
