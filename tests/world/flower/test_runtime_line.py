"""The server's own connection with a SuperLink: nobody waits for a slow sender, and sizes hold."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.superlink.grid import HttpGrid

from fedkeel.world.flower import fleetapi, parcel
from fedkeel.world.flower.grid import GridTransport
from fedkeel.world.remote.transport import Reply
from tests.helpers.flower import until

pytestmark = pytest.mark.extras


class Answering:
    """The SuperLink's side: answers whose objects come when a test says so."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.held: set[str] = set()
        """Objects whose sender is still sending."""
        self.gone: set[str] = set()
        self.away = 0
        """So many requests fail."""
        self.pulled: list[str] = []
        self.confirmed: list[str] = []
        self.trees: dict[str, ObjectTree] = {}
        """By message: another tree than that of its answer."""
        self._waiting: dict[str, Message] = {}

    def answer(self, name: str, body: bytes | RecordDict) -> list[str]:
        """The objects of an answer to this message."""
        asked = Message(RecordDict(), 7, parcel.KIND, ttl=60)
        asked.metadata.__dict__["_message_id"] = name
        reply = Message(parcel.packed(body) if isinstance(body, bytes) else body, reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        nested = fleetapi.get_all_nested_objects(reply)
        self.objects |= {each: content.deflate() for each, content in nested.items()}
        self._waiting[name] = reply
        return [*nested]

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        names = [name for name in request.message_ids if name in self._waiting]
        found = [self._waiting.pop(name) for name in names]
        trees = [self.trees.get(name, fleetapi.get_object_tree(each)) for name, each in zip(names, found, strict=True)]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(fleetapi.remove_content_from_message(each)) for each in found],
            message_object_trees=trees,
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        if self.away:
            self.away -= 1
            raise httpx.ConnectError("away")
        self.pulled.append(request.object_id)
        there = request.object_id not in self.held
        return PullObjectResponse(
            object_found=request.object_id not in self.gone,
            object_available=there,
            object_content=self.objects[request.object_id] if there else b"",
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)

    def close(self) -> None: ...


@pytest.fixture
def superlink() -> Answering:
    return Answering()


@pytest.fixture
def transport(superlink: Answering) -> GridTransport:
    grid = HttpGrid("127.0.0.1:1", insecure=True, token="x")
    transport = GridTransport(grid)
    assert isinstance(transport._line, fleetapi.RuntimeLine)
    transport._line._client.close()
    transport._line._client = superlink  # type: ignore[assignment]
    transport._awaited |= {"a": 7, "b": 3}
    return transport


def gathered(transport: GridTransport, count: int = 1) -> list[Reply]:
    replies: list[Reply] = []

    def enough() -> bool:
        replies.extend(transport.poll())
        return len(replies) >= count

    until(enough, 20)
    return replies


def test_an_answer_in_chunks_is_put_together(superlink: Answering, transport: GridTransport) -> None:
    body = bytes(range(256)) * 50_000
    *_, last = superlink.answer("a", body)
    assert gathered(transport) == [Reply("a", 7, body)]
    until(lambda: superlink.confirmed == [last], 10)
    assert transport._awaited == {"b": 3}


def test_nobody_waits_for_a_node_that_is_still_sending(superlink: Answering, transport: GridTransport) -> None:
    slow = superlink.answer("a", b"slow")
    superlink.held |= {*slow}
    superlink.answer("b", b"quick")
    assert gathered(transport) == [Reply("b", 3, b"quick")]
    assert transport.poll() == []
    superlink.held.clear()
    assert gathered(transport) == [Reply("a", 7, b"slow")]


def test_a_superlink_that_is_away_for_a_moment_loses_no_answer(superlink: Answering, transport: GridTransport) -> None:
    superlink.answer("a", b"one")
    superlink.away = 3
    assert gathered(transport) == [Reply("a", 7, b"one")]


def test_an_answer_whose_sender_was_cut_off_is_gone(superlink: Answering, transport: GridTransport) -> None:
    superlink.gone |= {superlink.answer("a", b"one")[0]}
    (reply,) = gathered(transport)
    assert (reply.message, reply.body) == ("a", None)
    assert "cut off" in reply.error


def test_what_is_too_large_is_not_fetched_to_its_end(superlink: Answering, transport: GridTransport) -> None:
    transport.most = 6_000_000
    objects = superlink.answer("a", b"".join(bytes([number]) * 5_242_880 for number in range(8)))
    (reply,) = gathered(transport)
    assert reply.body is None
    assert reply.error.endswith("bytes; at most 6,000,000 are allowed")
    assert len(superlink.pulled) == 2
    until(lambda: superlink.confirmed == [objects[-1]], 10)


def test_of_two_gigabytes_no_more_is_fetched_than_the_limit(superlink: Answering, transport: GridTransport) -> None:
    transport.most = 20_000_000
    chunk, fetched = bytes(5_000_000), list[int]()
    head = superlink.answer("a", b"")[-1]
    parts = [ObjectTree(object_id=f"{number:064x}") for number in range(2_000_000_000 // len(chunk))]
    superlink.trees["a"] = ObjectTree(object_id=head, children=parts)

    def pull(_: PullObjectRequest) -> PullObjectResponse:
        fetched.append(len(chunk))
        return PullObjectResponse(object_found=True, object_available=True, object_content=chunk)

    superlink.PullObject = pull  # type: ignore[method-assign]
    (reply,) = gathered(transport)
    assert (reply.body, reply.too_large) == (None, True)
    assert reply.error.endswith("bytes; at most 20,000,000 are allowed")
    assert 20_000_000 < sum(fetched) <= 25_000_000
    until(lambda: superlink.confirmed == [head], 10)


class Flood(BaseHTTPRequestHandler):
    """Answers with an object that has no end, until nobody listens any more."""

    sent = 0

    def do_POST(self) -> None:
        if not self.path.endswith("pull-object"):
            self.send_error(404)
            return
        most = 30_000_000
        self.rfile.read(int(self.headers["Content-Length"]))
        head = PullObjectResponse(object_found=True, object_available=True).SerializeToString()
        head += b"\x1a" + _varint(most)  # the field with the content
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(head) + most))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(head)
            while Flood.sent < most:
                self.wfile.write(bytes(1_000_000))
                Flood.sent += 1_000_000

    def log_message(self, *_: object) -> None: ...


def _varint(number: int) -> bytes:
    """As protobuf writes it."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def test_one_object_that_is_too_large_is_not_read_to_its_end() -> None:
    Flood.sent = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Flood) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        line = fleetapi.RuntimeLine(HttpGrid(f"127.0.0.1:{server.server_port}", insecure=True, token="x"))
        header = fleetapi.Header("m", "a", 1, ObjectTree(object_id="0" * 64), 0.0)
        try:
            with pytest.raises(fleetapi.TooLargeError, match="at most 1,000,000 are allowed"):
                line.fetch(header, 1_000_000, threading.Event())
        finally:
            line.close()
            server.shutdown()
    assert Flood.sent < 20_000_000


def test_one_chunk_that_is_named_many_times_counts_each_time(superlink: Answering, transport: GridTransport) -> None:
    transport.most = 10_000_000
    superlink.answer("a", bytes(8 * 5_242_880))
    (reply,) = gathered(transport)
    assert reply.body is None
    assert "41,943" in reply.error


def test_one_chunk_that_many_arrays_name_counts_for_each(superlink: Answering, transport: GridTransport) -> None:
    transport.most = 10_000_000
    many = {f"{number}": Array("uint8", (number,), "x", bytes(5_242_880)) for number in range(8)}
    superlink.answer("a", RecordDict({parcel.NAME: ArrayRecord(many)}))
    (reply,) = gathered(transport)
    assert reply.body is None
    assert "41,943" in reply.error


@pytest.mark.parametrize("parts", [1, 20])
def test_only_bytes_may_be_long(parts: int, superlink: Answering, transport: GridTransport) -> None:
    """What else Flower can send may take many times as much memory as on the wire, such as lists of numbers."""
    transport.most = 30_000_000
    records = {str(part): ConfigRecord({f"{part}": "x" * (18_000_000 // parts)}) for part in range(parts)}
    superlink.answer("a", RecordDict(records))  # type: ignore[arg-type]
    (reply,) = gathered(transport)
    assert (reply.body, reply.too_large) == (None, True)
    assert reply.error.endswith("bytes; at most 1,000,000 are allowed")


def test_chunks_that_name_others_are_not_long_bytes(superlink: Answering, transport: GridTransport) -> None:
    """A list of nothing takes eight times as much memory as on the wire."""
    transport.most = 30_000_000
    head = superlink.answer("a", b"x")[-1]
    part = ObjectTree(object_id="0" * 64)
    superlink.trees["a"] = ObjectTree(object_id=head, children=[part])
    superlink.objects[part.object_id] = b"ArrayChunk " + b"," * 5_000_000 + b" 0\x00"
    (reply,) = gathered(transport)
    assert reply.error.endswith("bytes; at most 1,000,000 are allowed")


def test_nonsense_does_not_stop_the_server(superlink: Answering, transport: GridTransport) -> None:
    for each in superlink.answer("a", b"one"):
        superlink.objects[each] = b"nonsense"
    (reply,) = gathered(transport)
    assert reply.body is None
    assert reply.error.startswith("it cannot be read")


def test_what_is_forgotten_is_not_fetched_any_more(superlink: Answering, transport: GridTransport) -> None:
    superlink.held |= {*superlink.answer("a", b"one")}
    assert transport.poll() == []
    transport.forget(["a"])
    superlink.held.clear()
    superlink.answer("b", b"two")
    assert gathered(transport) == [Reply("b", 3, b"two")]


def test_flowers_own_connection_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleetapi, "_RETRIES", 0.1)
    grid = HttpGrid("127.0.0.1:1", insecure=True, token="x")
    transport = GridTransport(grid)
    with pytest.raises(ConnectionError, match="cannot be reached"):
        transport.nodes()
    transport.close()
    assert grid._client is None
    assert grid._retry_invoker.max_time is None


def test_a_superlink_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleetapi, "_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport = GridTransport(HttpGrid(f"127.0.0.1:{server.getsockname()[1]}", insecure=True, token="x"))
        with pytest.raises(ConnectionError, match="timed out"):
            transport.nodes()
        server.accept()[0].close()
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
        transport.close()
