"""Messages and answers through a grid, without a SuperLink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedkeel.errors import StoppedError
from fedkeel.world.flower import fleetapi, parcel
from fedkeel.world.flower.failures import RefusedError
from fedkeel.world.flower.grid import GridTransport
from fedkeel.world.remote.envelope import EnvelopeError
from fedkeel.world.remote.transport import Reply, Transport
from tests.helpers.flower import until

pytestmark = pytest.mark.extras


class FakeGrid(Grid):
    """Keeps what is pushed; a test answers it."""

    def __init__(self) -> None:
        self.sent: dict[str, Message] = {}
        self.answers: list[Message] = []
        self.asked: list[list[str]] = []
        self.fails: Exception | None = None

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Any: ...

    def send_and_receive(self, *_: Any, **__: Any) -> Any: ...

    def _maybe_fail(self) -> None:
        if self.fails:
            raise self.fails

    def get_node_ids(self) -> Iterable[int]:
        self._maybe_fail()
        return [7, 3]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._maybe_fail()
        names = []
        for message in messages:
            known = message.metadata.dst_node_id in (3, 7)
            names.append(f"m{len(self.sent)}" if known else "")
            message.metadata.__dict__["_message_id"] = names[-1]
            self.sent[names[-1]] = message
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._maybe_fail()
        self.asked.append([*message_ids])
        found = [each for each in self.answers if each.metadata.reply_to_message_id in self.asked[-1]]
        self.answers = [each for each in self.answers if each not in found]
        return found

    def answer(self, name: str, content: bytes | Error | RecordDict) -> None:
        content = parcel.packed(content) if isinstance(content, bytes) else content
        self.answers.append(Message(content, reply_to=self.sent[name]))


def polled(transport: Transport) -> list[Reply]:
    """What comes within a moment."""
    replies: list[Reply] = []

    def some() -> bool:
        replies.extend(transport.poll())
        return bool(replies)

    until(some, 10)
    return replies


def test_an_answer_finds_its_message() -> None:
    grid = FakeGrid()
    transport: Transport = GridTransport(grid)
    assert transport.nodes() == [3, 7]
    first, second = transport.push(7, b"one", 5.0), transport.push(3, b"two", 60.0)
    assert parcel.unpacked(grid.sent[first].content) == b"one"
    assert grid.sent[first].metadata.dst_node_id == 7
    assert [each.metadata.ttl for each in grid.sent.values()] == [5.0, 60.0]
    assert {each.metadata.message_type for each in grid.sent.values()} == {parcel.KIND}
    assert transport.poll() == []
    grid.answer(second, b"of two")
    assert polled(transport) == [Reply(second, 3, b"of two")]
    grid.answer(first, b"of one")
    assert polled(transport) == [Reply(first, 7, b"of one")]
    assert grid.asked[-1] == [first]  # what has come is not asked for again
    asked = len(grid.asked)
    assert transport.poll() == []
    assert len(grid.asked) == asked


def test_a_short_message_is_one_record() -> None:
    """So it has three parts, each of which is a call: the message, its records, and this one."""
    body = bytes(range(256)) * 100
    content = parcel.packed(body)
    assert len(get_all_nested_objects(content)) == 2
    assert parcel.unpacked(content) == body


@pytest.mark.parametrize(
    "record", [ConfigRecord({"fedkeel": "text"}), ConfigRecord({"other": b"x"}), ArrayRecord({}), MetricRecord({})]
)
def test_what_others_made_is_refused(record: ConfigRecord | ArrayRecord | MetricRecord) -> None:
    with pytest.raises(EnvelopeError, match="no message of fedkeel"):
        parcel.unpacked(RecordDict({"fedkeel": record}))


def test_the_bytes_of_a_long_one_are_an_array_that_flower_divides() -> None:
    content = parcel.packed(bytes(12_000_000))
    (record,) = content.array_records.values()
    (array,) = record.values()
    assert (array.dtype, array.shape, array.stype) == ("uint8", (12_000_000,), "fedkeel")
    assert len(array.slice_array()) > 1


def test_what_is_forgotten_is_not_asked_for() -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    first, second = transport.push(7, b"one", 5.0), transport.push(3, b"two", 5.0)
    transport.forget([first, "of somebody else"])
    grid.answer(first, b"late")
    assert transport.poll() == []
    assert grid.asked == [[second]]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "it failed"),
        (2, "ClientApp raised an error"),
        (3, "expired"),
        (5, "the node is not available"),
        (8, "the ClientApp crashed"),
        (99, "it failed"),
    ],
)
def test_an_error_is_told_in_words(code: int, words: str) -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    name = transport.push(7, b"one", 5.0)
    grid.answer(name, Error(code, "because\n  of this"))
    (reply,) = polled(transport)
    assert (reply.message, reply.node, reply.body) == (name, 7, None)
    assert words in reply.error
    assert f"(Flower's error {code}: because of this)" in reply.error


def test_an_error_cannot_write_to_the_terminal() -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    grid.answer(transport.push(7, b"one", 5.0), Error(2, "\x1b[2Jgone\x07" + 9_000 * "x"))
    (reply,) = polled(transport)
    assert reply.error.isprintable()
    assert len(reply.error) < 1_000


def test_an_error_may_have_no_reason() -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    grid.answer(transport.push(7, b"one", 5.0), Error(5))
    assert polled(transport)[0].error == "the node is not available (Flower's error 5)"


def test_an_answer_that_is_too_large_is_none() -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    transport.most = 1000
    names = [transport.push(7, b"one", 5.0), transport.push(7, b"two", 5.0)]
    grid.answer(names[0], bytes(1001))
    assert polled(transport) == [Reply.refused(names[0], 7, 1001, 1000)]
    grid.answer(names[1], bytes(1000))
    assert polled(transport) == [Reply(names[1], 7, bytes(1000))]


def test_an_answer_of_others_is_none() -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    name = transport.push(7, b"one", 5.0)
    grid.answer(name, RecordDict({"fedkeel": ConfigRecord({"a": 1})}))
    assert polled(transport) == [Reply(name, 7, None, "it is no message of fedkeel")]


def test_a_node_that_is_unknown_gives_an_error_as_an_answer() -> None:
    transport = GridTransport(FakeGrid())
    names = [transport.push(5, b"one", 5.0), transport.push(5, b"one", 5.0)]
    assert len({*names}) == 2
    replies = transport.poll()
    assert [(each.message, each.node, each.body) for each in replies] == [(name, 5, None) for name in names]
    assert "the node is unknown" in replies[0].error
    assert transport.poll() == []


def status(code: int) -> Exception:
    request = httpx.Request("POST", "http://127.0.0.1/")
    response = httpx.Response(code, json={"code": 9, "detail": "Not you."}, request=request)
    return httpx.HTTPStatusError("", request=request, response=response)


CALLS: list[Callable[[GridTransport], object]] = [
    lambda transport: transport.nodes(),
    lambda transport: transport.push(7, b"two", 5.0),
    lambda transport: transport.poll(),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("error", "becomes", "words"),
    [
        (httpx.ConnectError("Connection refused"), ConnectionError, "Connection refused"),
        (httpx.ReadTimeout(""), ConnectionError, "ReadTimeout"),
        (status(503), ConnectionError, "Not you"),
        (status(400), RefusedError, "Flower's code 9"),
        (fleetapi.RunNotRunningException(), StoppedError, "ended this run"),
    ],
)
def test_errors_are_those_of_the_transport(
    call: Callable[[GridTransport], object], error: Exception, becomes: type[Exception], words: str
) -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    name = transport.push(7, b"one", 5.0)
    grid.fails = error
    with pytest.raises(becomes, match=words):
        call(transport)
    grid.fails = None
    grid.answer(name, b"after all")
    assert polled(transport) == [Reply(name, 7, b"after all")]


def test_news_are_told_even_if_the_superlink_is_away() -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    transport.push(7, b"one", 5.0)
    void = transport.push(5, b"one", 5.0)
    grid.fails = httpx.ConnectError("away")
    assert [each.message for each in transport.poll()] == [void]
    with pytest.raises(ConnectionError):
        transport.poll()


def test_interrupts_are_a_matter_of_the_nodes() -> None:
    assert not GridTransport(FakeGrid()).interrupts
    assert GridTransport(FakeGrid(), interrupts=True).interrupts


def test_closing_forgets_everything() -> None:
    grid = FakeGrid()
    transport = GridTransport(grid)
    transport.push(7, b"one", 5.0)
    transport.close()
    assert transport.poll() == []
    assert grid.asked == []
