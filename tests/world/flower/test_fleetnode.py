"""A node of our own, with a SuperLink that does what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

from fedkeel.world.flower import fleetapi, fleetnode, parcel
from fedkeel.world.flower.failures import GoneError, RefusedError
from fedkeel.world.flower.fleetapi import Header
from fedkeel.world.flower.fleetnode import FleetNode
from fedkeel.world.remote import envelope
from tests.helpers.flower import Silo, until

pytestmark = pytest.mark.extras


class FakeFleet:
    """Messages that a test puts, and the answers to them."""

    def __init__(self) -> None:
        self.messages: list[RecordDict] = []
        self.answers: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.activations = self.heartbeats = self.received = self.pushes = 0
        self.closed = False
        self.at_activation: list[Exception] = []
        self.at_receipt: list[Exception] = []
        self.at_push: list[Exception] = []
        self.lifetime = 60.0
        self._content: dict[str, Message] = {}

    def activate(self) -> int:
        self.activations += 1
        if self.at_activation:
            raise self.at_activation.pop(0)
        return 7

    def heartbeat(self) -> None:
        self.heartbeats += 1
        raise ConnectionError("away")

    def receive(self) -> Header | None:
        if self.at_receipt:
            raise self.at_receipt.pop(0)
        if not self.messages:
            return None
        name = f"m{self.received}"
        self.received += 1
        message = Message(self.messages.pop(0), 7, parcel.KIND)
        message.metadata.__dict__["_message_id"] = name
        self._content[name] = message
        return Header(name, "", 1, fleetapi.ObjectTree(), time.time() + self.lifetime)

    def fetch(self, header: Header, stop: threading.Event) -> Message:
        message = self._content[header.id]
        if "gone" in message.content:
            raise GoneError("gone")
        return message

    def confirm(self, header: Header) -> None:
        self.confirmed.append(header.id)

    def push(self, reply: Message, seconds: float, again: bool = False) -> None:
        self.pushes += 1
        if self.at_push:
            raise self.at_push.pop(0)
        self.answers[reply.metadata.reply_to_message_id] = parcel.unpacked(reply.content)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fleet() -> FakeFleet:
    return FakeFleet()


@pytest.fixture
def node(fleet: Any, silo: Silo, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetNode]:
    monkeypatch.setattr(fleetnode, "_LONGEST", 0.01)
    monkeypatch.setattr(fleetapi, "HEARTBEAT", 0.01)
    node = FleetNode(fleet, silo.path, poll=0.01)
    thread = threading.Thread(target=node.run, daemon=True)
    node.begin = thread.start  # type: ignore[attr-defined]
    yield node
    node.stop.set()
    if thread.ident is not None:
        thread.join(10)
        assert not thread.is_alive()
        assert fleet.closed


def begin(node: Any) -> None:
    node.begin()


def test_a_message_goes_to_the_silo_and_back(fleet: FakeFleet, node: FleetNode) -> None:
    fleet.messages = [parcel.packed(b"one"), parcel.packed(b"two")]
    begin(node)
    until(lambda: fleet.answers == {"m0": b"answer to one", "m1": b"answer to two"}, 10)
    until(lambda: sorted(fleet.confirmed) == ["m0", "m1"], 10)
    assert fleet.activations == 1


@pytest.mark.parametrize(("patience", "told"), [(0.0, True), (1e6, False)])
def test_failures_are_told_if_they_last_and_so_is_their_end(
    patience: float,
    told: bool,
    fleet: FakeFleet,
    node: FleetNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(fleetnode, "_PATIENCE", patience)
    fleet.at_receipt = [ConnectionError("no way"), ConnectionError("no way")]
    fleet.messages = [parcel.packed(b"one")]
    with caplog.at_level("INFO", logger="fedkeel.node"):
        begin(node)
        until(lambda: fleet.answers, 10)
    lines = [each.getMessage() for each in caplog.records]
    assert lines.count("no way; trying again") == told
    assert lines.count("the SuperLink answers again") == told


def test_a_silo_that_never_answers_is_given_up_with_the_message(fleet: FakeFleet, silo: Silo, node: FleetNode) -> None:
    free = threading.Event()
    silo.answer = lambda body: body if free.wait(30) else b""
    fleet.lifetime = 0.5
    fleet.messages = [parcel.packed(b"train")]
    begin(node)
    until(lambda: fleet.answers, 10)
    assert "in time" in envelope.facts(fleet.answers["m0"])["why"]
    free.set()


def test_a_message_reaches_a_silo_that_is_working(fleet: FakeFleet, silo: Silo, node: FleetNode) -> None:
    interrupted = threading.Event()

    def answer(body: bytes) -> bytes:
        if body == b"interrupt":
            interrupted.set()
        assert interrupted.wait(10)
        return body

    silo.answer = answer
    fleet.messages = [parcel.packed(b"train"), parcel.packed(b"interrupt")]
    begin(node)
    until(lambda: fleet.answers == {"m0": b"train", "m1": b"interrupt"}, 10)


def test_it_lives_on_while_the_superlink_is_away(fleet: FakeFleet, node: FleetNode) -> None:
    fleet.at_activation = [ConnectionError("away")] * 3
    fleet.at_receipt = [ConnectionError("away")] * 5
    fleet.messages = [parcel.packed(b"one")]
    begin(node)
    until(lambda: fleet.answers == {"m0": b"answer to one"}, 10)
    assert fleet.activations == 4  # once it was activated, it stays so
    until(lambda: fleet.heartbeats > 3, 10)


def test_one_refusal_is_not_the_end_of_a_connection(fleet: FakeFleet, node: FleetNode) -> None:
    fleet.at_receipt = [RefusedError("late")]
    fleet.messages = [parcel.packed(b"one")]
    begin(node)
    until(lambda: fleet.answers == {"m0": b"answer to one"}, 10)
    assert fleet.activations == 1


def test_a_node_that_is_not_known_any_more_begins_anew(fleet: FakeFleet, node: FleetNode) -> None:
    fleet.at_receipt = [RefusedError("who?")] * 3
    fleet.at_activation = []
    fleet.messages = [parcel.packed(b"one")]
    begin(node)
    until(lambda: fleet.answers == {"m0": b"answer to one"}, 10)
    assert fleet.activations == 2


def test_a_node_that_is_refused_for_long_gives_up(fleet: Any, silo: Silo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleetnode, "_LONGEST", 0.01)
    monkeypatch.setattr(fleetnode, "_AT_FIRST", 0.2)
    fleet.at_activation = [RefusedError("not you")] * 10_000
    with pytest.raises(RefusedError, match="not you"):
        FleetNode(fleet, silo.path).run()
    assert fleet.activations > 2
    assert fleet.closed


def test_a_lost_answer_is_sent_again(fleet: FakeFleet, silo: Silo, node: FleetNode) -> None:
    fleet.at_push = [ConnectionError("away"), RefusedError("late"), ConnectionError("away")]
    fleet.messages = [parcel.packed(b"one")]
    begin(node)
    until(lambda: fleet.answers == {"m0": b"answer to one"}, 10)
    assert len(silo.got) == 1


def test_an_answer_is_not_sent_for_ever(fleet: FakeFleet, node: FleetNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleetnode, "_PUSHES", 5)
    fleet.at_push = [ConnectionError("away")] * 5
    fleet.messages = [parcel.packed(b"one")]
    begin(node)
    until(lambda: fleet.pushes == 5, 10)
    fleet.messages = [parcel.packed(b"two")]
    until(lambda: fleet.answers == {"m1": b"answer to two"}, 10)


def test_an_answer_that_nobody_waits_for_is_sent_once(fleet: FakeFleet, node: FleetNode) -> None:
    fleet.lifetime = -1.0
    fleet.at_push = [ConnectionError("away")]
    fleet.messages = [parcel.packed(b"one")]
    begin(node)
    until(lambda: fleet.pushes == 1, 10)
    fleet.lifetime = 60.0
    fleet.messages = [parcel.packed(b"two")]
    until(lambda: fleet.answers == {"m1": b"answer to two"}, 10)


def test_messages_that_cannot_be_used_do_no_harm(fleet: FakeFleet, silo: Silo, node: FleetNode) -> None:
    fleet.messages = [
        RecordDict({"gone": ConfigRecord()}),
        RecordDict({"other": ConfigRecord()}),
        parcel.packed(b"one"),
    ]
    begin(node)
    until(lambda: {*fleet.answers} == {"m1", "m2"}, 10)
    assert "no message of fedkeel" in envelope.facts(fleet.answers["m1"])["why"]
    assert silo.got == [b"one"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--superlink", "nowhere"], "must be HOST:PORT"),
        (["--superlink", "a:1", "--insecure", "--key", "k"], "neither a key nor root certificates"),
        (["--superlink", "a:1", "--key", "/nonexistent"], "no private key"),
        (["--superlink", "a:1", "--root-certificates", "/nonexistent"], "no certificates"),
        (["--superlink", "a:1", "--poll", "0"], "--poll must be"),
    ],
)
def test_mistakes_are_told(arguments: list[str], words: str, caplog: pytest.LogCaptureFixture) -> None:
    assert fleetnode.main([*arguments, "--silo", "/tmp/none"]) == 2
    assert words in caplog.text


@pytest.mark.parametrize(
    ("took", "idle", "pause"),
    [(0.001, 0, 0.1), (0.3, 0, 0.6), (5.0, 0, 2.0), (0.0, 10, 0.2), (0.0, 600, 1.0), (0.3, 10, 0.6)],
)
def test_a_busy_superlink_is_asked_less_often_and_so_is_one_that_has_had_nothing_for_long(
    took: float, idle: float, pause: float, fleet: Any, silo: Silo, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited = [0.0], list[float]()

    def receive() -> None:
        now[0] += took

    monkeypatch.setattr(fleet, "receive", receive)
    monkeypatch.setattr(fleetnode.time, "monotonic", lambda: now[0])
    node = FleetNode(fleet, silo.path)
    monkeypatch.setattr(node.stop, "wait", waited.append)
    now[0] = idle
    node._once()
    assert waited == [pytest.approx(pause)]
