"""A message or an answer that is cut off on its way to the SuperLink, at any call: sent again, it arrives whole.

Flower's own handlers and database stand behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedkeel.world.flower import fleetapi, parcel
from fedkeel.world.flower.grid import GridTransport

pytestmark = pytest.mark.extras

SIZE, PART, CALLS = 12_000, 5_000, 8
"""Bytes of a message and of its parts, and calls that send it: one for the message, and one for each of its parts."""


class SuperLink:
    """Flower's state of a run with one node; it is killed before or after one of the calls."""

    def __init__(self, database: Path) -> None:
        manager, store = NoOpFederationManager(), ObjectStoreFactory(str(database))
        self.state = LinkStateFactory(str(database), manager, store).state()
        self.node = self.state.create_node(NOOP_FLWR_AID, "", b"key", 60)
        self.state.activate_node(self.node, 60)
        self.run = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (self.task,) = self.state.get_tasks()
        self.state.claim_task(self.task.task_id)
        self.state.activate_task(self.task.task_id)
        self.begin(None, False, lambda: None)

    def begin(self, cut: int | None, done_first: bool, between: Callable[[], object]) -> None:
        """Count calls from 0; the one that is cut off may be carried out before; the server acts after each."""
        self.calls, self.cut, self.done_first, self.between = 0, cut, done_first, between

    def asked(self) -> Message:
        """A message to the node, which it has fetched."""
        message = Message(parcel.packed(b"question"), self.node, parcel.KIND, ttl=60)
        told = message.metadata.__dict__
        told["_message_id"], told["_run_id"], told["_src_node_id"] = message.object_id, self.run, SUPERLINK_NODE_ID
        assert self.state.store_message_ins(message)
        assert self.state.get_message_ins(self.node, 1)
        return message

    def _called(self, handler: Callable[..., Any], request: Any) -> Any:
        self.calls += 1
        killed = self.calls - 1 == self.cut
        if killed and not self.done_first:
            raise httpx.ConnectError("killed")
        told = handler(request, self.state)
        self.between()
        if killed:
            raise httpx.ReadError("killed")
        return told

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        return self._called(fleet_handlers.push_messages, request)

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        return self._called(fleet_handlers.push_object, request)

    def taken(self) -> list[fleetapi.Header]:
        """All messages that wait for the node."""
        found: list[fleetapi.Header] = []
        request, store = PullMessagesRequest(node=Node(node_id=self.node)), self.state.object_store
        for _ in range(3):  # there are no more; one that was withdrawn is passed over
            got = fleet_handlers.pull_messages(request, self.state, store)
            pairs = zip(got.messages_list, got.message_object_trees, strict=True)
            found += [fleetapi.Header.of(*each) for each in pairs]
        return found

    def headers(self, name: str) -> list[fleetapi.Header]:
        """What the server finds when it looks for an answer."""
        got = runtime_handlers.pull_messages(PullAppMessagesRequest(message_ids=[name]), self.state, self.task)
        return [fleetapi.Header.of(*each) for each in zip(got.messages_list, got.message_object_trees, strict=True)]

    def missing(self, header: fleetapi.Header) -> list[str]:
        """Parts that the server waits for."""
        ids = [each.object_id for each in fleetapi.iterate_object_tree(header.tree)]
        pulls = [PullObjectRequest(node=Node(node_id=1), run_id=self.run, object_id=each) for each in ids]
        got = [runtime_handlers.pull_object(each, self.state, self.task) for each in pulls]
        return [each for each, told in zip(ids, got, strict=True) if not told.object_available]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts, so that there are some of a message that is small itself."""
    monkeypatch.setattr(parcel, "SHORT", 100)
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", PART)


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> SuperLink:
    return SuperLink(tmp_path_factory.mktemp("superlink") / "superlink.db")


@pytest.fixture
def fleet(superlink: SuperLink) -> fleetapi.Fleet:
    fleet = fleetapi.Fleet.__new__(fleetapi.Fleet)
    fleet._node, fleet._client = Node(node_id=superlink.node), superlink  # type: ignore[assignment]
    return fleet


@pytest.mark.parametrize("done_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("eager", [False, True], ids=["later", "at once"])
@pytest.mark.parametrize("cut", range(CALLS))
def test_an_answer_that_was_cut_off_arrives_whole(
    superlink: SuperLink, fleet: fleetapi.Fleet, cut: int, eager: bool, done_first: bool
) -> None:
    """`eager`: the server begins to fetch the answer while the node is sending it."""
    asked = superlink.asked()
    found: list[fleetapi.Header] = []

    def look() -> None:
        found.extend(superlink.headers(asked.metadata.message_id) if not found else ())

    superlink.begin(cut, done_first, look if eager else lambda: None)
    reply = Message(parcel.packed(os.urandom(SIZE)), reply_to=asked)
    with pytest.raises(ConnectionError):
        fleet.push(reply, 1.0)
    fleet.push(reply, 1.0, again=True)
    look()
    (header,) = found
    assert header.answers == asked.metadata.message_id
    assert superlink.missing(header) == []


def test_the_calls_are_counted(superlink: SuperLink, fleet: fleetapi.Fleet) -> None:
    superlink.begin(None, False, lambda: None)
    fleet.push(Message(parcel.packed(os.urandom(SIZE)), reply_to=superlink.asked()), 1.0)
    assert superlink.calls == CALLS


class Runtime:
    """The server's calls; one of them is cut off, or its response is lost and Flower makes it again."""

    def __init__(self, superlink: SuperLink, cut: int | None, how: str) -> None:
        self._superlink, self._cut, self._how = superlink, cut, how
        self.calls = 0

    def _called(self, handler: Callable[..., Any], request: Any) -> Any:
        self.calls += 1
        cut = self.calls - 1 == self._cut
        if cut and self._how == "before":
            raise httpx.ConnectError("killed")
        told = handler(request, self._superlink.state, self._superlink.task)
        if cut and self._how == "after":
            raise httpx.ReadError("killed")
        return handler(request, self._superlink.state, self._superlink.task) if cut else told

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        return self._called(runtime_handlers.push_messages, request)

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        return self._called(runtime_handlers.push_object, request)

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        return runtime_handlers.confirm_message_received(request, self._superlink.state, self._superlink.task)


@pytest.fixture
def server(superlink: SuperLink, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GridTransport]:
    """The server's transport, whose calls come one after the other."""
    monkeypatch.setattr(inflatable_utils, "get_num_workers", lambda _: 1)
    monkeypatch.setattr(TaskIdentity, "_run_id", superlink.run)
    monkeypatch.setattr(TaskIdentity, "_node_id", SUPERLINK_NODE_ID)
    superlink.taken()

    def connected(cut: int | None, how: str = "before") -> GridTransport:
        grid = HttpGrid("127.0.0.1:1", insecure=True, token="x")
        grid.set_run(Run.create_empty(superlink.run))
        transport = GridTransport(grid)
        line = transport._line
        assert isinstance(line, fleetapi.RuntimeLine)
        line._client.close()
        line.grid._client = line._client = Runtime(superlink, cut, how)  # type: ignore[assignment]
        return transport

    return connected


@pytest.mark.parametrize("how", ["before", "after", "twice"])
@pytest.mark.parametrize("eager", [False, True], ids=["later", "at once"])
@pytest.mark.parametrize("cut", range(CALLS))
def test_a_message_that_was_cut_off_is_sent_again_and_does_not_stay_half(
    superlink: SuperLink, server: Callable[..., GridTransport], cut: int, eager: bool, how: str
) -> None:
    """`eager`: the node begins to fetch what there is of it."""
    transport, body, early = server(cut, how), os.urandom(SIZE), list[fleetapi.Header]()
    if cut == 0 and how == "twice":  # that does no harm
        name = transport.push(superlink.node, body, 60)
    else:
        with pytest.raises(ConnectionError):
            transport.push(superlink.node, body, 60)
        early = superlink.taken() if eager else []
        name = transport.push(superlink.node, body, 60)
    assert all(each.id in superlink.missing(each) for each in early)
    (header,) = superlink.taken()
    assert header.id == name
    assert superlink.missing(header) == []


def test_the_servers_calls_are_counted(superlink: SuperLink, server: Callable[..., GridTransport]) -> None:
    transport = server(None)
    transport.push(superlink.node, os.urandom(SIZE), 60)
    assert transport._line._client.calls == CALLS  # type: ignore[attr-defined]
