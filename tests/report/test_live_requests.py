"""What the live page's server answers, and to whom."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkeel.errors import InputError
from fedkeel.report.live.server import LiveServer, serve
from tests.helpers.browser import ask, raw, served
from tests.helpers.report_folders import WHOLE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    row = (
        b'{"round": 1, "virtual_seconds": 1.0, "wall_seconds": 1.0, "accuracy": 0.5, "loss": 1.0, "updates": 1, '
        b'"bytes_up": 1, "bytes_down": 1, "version": 1}\n'
    )
    (folder / "experiment.yaml").write_bytes(WHOLE["experiment.yaml"])
    (folder / "history.jsonl").write_bytes(row)
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[LiveServer]:
    with served(run) as found:
        yield found


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:{port}", "localhost:9999"])
def test_this_machine_is_answered(server: LiveServer, host: str) -> None:
    assert ask(server, Host=host.format(port=server.server_port)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "",
        "localhost:80:80",
        "[::1]",
        "x@localhost",
    ],
)
def test_other_names_are_refused(server: LiveServer, host: str) -> None:
    for path in ("/", "/events", "/digest.json", "/other"):
        answer = ask(server, path, Host=host)
        assert answer.status == 403
        assert b"fedasmu" not in answer.body


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: evil.example\r\n"])
def test_no_name_and_two_names_are_refused(server: LiveServer, hosts: bytes) -> None:
    assert raw(server, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n").startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_nothing_can_be_changed(server: LiveServer, method: str) -> None:
    answer = ask(server, "/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path", ["/other", "/../../etc/passwd", "/experiment.yaml", "/events/", "http://localhost/", "/%2e%2e/"]
)
def test_there_are_no_files(server: LiveServer, path: str) -> None:
    assert ask(server, path).status == 404


def test_other_pages_may_not_read_along(server: LiveServer) -> None:
    for path in ("/events", "/digest.json"):
        for site in ("cross-site", "same-site"):
            assert ask(server, path, Sec_Fetch_Site=site).status == 403
    assert ask(server, "/", Sec_Fetch_Site="cross-site").status == 200  # a link may lead here
    assert ask(server, "/digest.json", Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("path", ["/", "/events", "/digest.json", "/other"])
def test_heads_have_the_headers_alone(server: LiveServer, path: str) -> None:
    head = ask(server, path, "HEAD")
    assert head.body == b""
    assert head.status == (404 if path == "/other" else 200)
    for name, value in (
        ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), ("Connection", "close"),
        ("Cross-Origin-Resource-Policy", "same-origin"), ("Referrer-Policy", "no-referrer"), ("Server", "fedkeel"),
    ):  # fmt: skip
        assert head.headers[name] == value
    assert "default-src 'none'" in head.headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in head.headers


def test_kinds_of_content(server: LiveServer) -> None:
    kinds = {path: ask(server, path, "HEAD").headers["Content-Type"] for path in ("/", "/events", "/digest.json")}
    assert kinds == {
        "/": "text/html; charset=utf-8", "/events": "text/event-stream", "/digest.json": "application/json"
    }  # fmt: skip


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / x\r\n\r\n"]
)
def test_what_is_no_request_gets_a_plain_answer(server: LiveServer, junk: bytes) -> None:
    answer = raw(server, junk)
    assert b"\nContent-Type: text/plain" in answer or b"Content-Type" not in answer
    assert b"<" not in answer
    assert ask(server).status == 200


def test_the_page_may_run_its_own_scripts_and_no_others(server: LiveServer) -> None:
    answer = ask(server)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    page = answer.body.decode()
    for tag in ("script", "style"):
        inline = re.findall(rf"<{tag}(?P<attributes>[^>]*)>(?P<text>.*?)</{tag}>", page, re.DOTALL)
        own = [text for attributes, text in inline if "application/json" not in attributes]
        assert own
        digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in own}
        assert set(policy[f"{tag}-src"].split()) == {f"'sha256-{digest}'" for digest in digests}
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert "unsafe" not in policy["script-src"] + policy["style-src"] + policy["default-src"]
    assert not re.search(r"<script[^>]+src=|<link[^>]+href=.(?!data:)|\son\w+=\"", page)


def test_only_this_machine_can_connect(server: LiveServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_a_port_that_is_taken_is_passed_over(run: Path, server: LiveServer) -> None:
    with serve([run], server.server_port) as other:
        assert server.server_port < other.server_port <= server.server_port + 100


def test_ports_that_cannot_be_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for port in (-1, 65_536):
        with pytest.raises(InputError, match=rf"port must be 1 to 65535, or 0 for any free port; got {port}"):
            serve([run], port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr("fedkeel.report.live.server.NEXT", 0)
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"ports {port} to {port} are all in use"):
            serve([run], port)
