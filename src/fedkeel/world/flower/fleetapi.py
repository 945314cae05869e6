# ruff: noqa: E402
"""Flower's private modules: the only file that knows them, for one version of Flower.

A node speaks Flower's Fleet API here (`Fleet`), and the server speaks its Runtime API (`RuntimeLine`). Every call
ends within `BOUND` seconds, or within `BOUND` seconds for each chunk of a message.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import cast

from fedkeel.errors import InputError, StoppedError, words
from fedkeel.world.flower.failures import HINTS, GoneError, RefusedError, TooLargeError
from fedkeel.world.flower.link import Link
from fedkeel.world.remote.envelope import over

PINNED = "1.41.0"
"""The version whose private modules these are."""


def check(found: str) -> None:
    """Refuse any other version."""
    if found != PINNED:
        raise InputError(f"a deployment needs Flower {PINNED}, not {found}; run pip install 'fedkeel[flower]'")


check(version("flwr"))

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedkeel.world.flower.parcel import SHORT

BOUND = 20.0
_TIMEOUT, _RETRIES = 15.0, 5.0  # a last try may begin just before the retries are over
_AROUND = 10_000
"""Bytes that surround an answer at most, about."""
_CHUNK = b"ArrayChunk  "
"""The beginning of a chunk, which has no parts of its own."""
HEARTBEAT = HEARTBEAT_DEFAULT_INTERVAL / 3
"""Seconds between two signs of life; Flower gives a node up after six of them."""


@contextmanager
def translated() -> Iterator[None]:
    """Errors of Flower and of HTTP as errors of fedkeel; ConnectionError for what may go well another time."""
    try:
        yield
    except RunNotRunningException:
        raise StoppedError("Flower has ended this run") from None
    except ObjectPushError:
        raise ConnectionError("the SuperLink did not keep a part of the message") from None
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        flower = FlowerError.from_json(error.response.text)
        told = f"{flower.message} (Flower's code {flower.code})" if flower else f"HTTP status {status}"
        told += HINTS.get(flower.code if flower else status, "")
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise ConnectionError(f"the SuperLink fails: {told}") from None
        raise RefusedError(f"the SuperLink refuses: {told}") from None
    except httpx.HTTPError as error:
        told = words(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in told:
            raise RefusedError(f"the SuperLink is not trusted: {told}; check --ca and the server's name") from None
        request = getattr(error, "_request", None)  # `request` raises where there is none
        plain = request is not None and request.url.scheme == "http"
        cut = plain and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
        hint = "; it may want TLS: see --ca and --key" if cut else ""
        raise ConnectionError(f"the SuperLink cannot be reached: {told}{hint}") from None


@dataclass(frozen=True)
class Header:
    """What is known of a message before its content is there."""

    id: str
    answers: str
    """The message that it answers, or nothing."""
    run: int
    tree: ObjectTree
    ends: float
    """When it is void, in seconds since 1970."""

    @classmethod
    def of(cls, proto: object, tree: ObjectTree) -> Header:
        """From what Flower sends first."""
        told = proto.metadata  # type: ignore[attr-defined]
        return cls(told.message_id, told.reply_to_message_id, told.run_id, tree, told.created_at + told.ttl)


def _fetched(
    header: Header, pull: Callable[[str], PullObjectResponse], most: int | None, stop: threading.Event
) -> Message:
    """The whole message. Its sender may still be sending it, and the SuperLink may be away for a while."""
    contents: dict[str, bytes] = {}
    wait, size, ends = 0.02, 0, max(header.ends, time.time() + BOUND)
    ids = dict.fromkeys(each.object_id for each in iterate_object_tree(header.tree))
    for number in ids:
        while True:
            with suppress(ConnectionError), translated():
                got = pull(number)
                if not got.object_found:
                    raise GoneError("its content is gone; its sender may have been cut off")
                if got.object_available:
                    break
            if stop.wait(wait) or time.time() > ends:
                raise GoneError("it did not arrive in time")
            wait = min(2 * wait, 1.0)
        contents[number] = got.object_content
        size += len(got.object_content)
        _allow(size - _AROUND, most)
    if most is not None:  # only chunks of bytes may be long: anything else takes more memory than on the wire
        _allow(sum(len(each) for each in contents.values() if not each.startswith(_CHUNK)) - _AROUND, SHORT)
    _allow(sum(_expanded(each, contents) for each in contents.values()), most)
    message = inflate_object_from_contents(header.id, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = header.id
    return message


def _allow(size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise TooLargeError(over(size, most))


def _expanded(content: bytes, contents: dict[str, bytes]) -> int:
    """The bytes of an array. It may name a chunk many times, and other arrays may name the same one."""
    kind, children, length = get_object_head_values_from_object_content(content)
    if kind != "Array":
        return 0
    return sum(len(contents[children[each]]) for each in json.loads(content[len(content) - length :])["arraychunk_ids"])


class Fleet:
    """A node's connection to the SuperLink. A call raises ConnectionError or RefusedError if it fails."""

    def __init__(self, link: Link) -> None:
        private = link.private_key()
        public = private.public_key()
        self._known = link.key is not None
        self._public = public_key_to_bytes(public)
        self._node = Node()
        self._client = FleetHttpClient(
            link.url,
            interceptors=[RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(private, public)],
            verify=link.trust(),
            timeout=_TIMEOUT,
        )

    def activate(self) -> int:
        """Begin to take messages; the node's number, which belongs to its key."""
        refusal: RefusedError | None = None
        try:
            if not self._known:
                with translated():
                    self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        except RefusedError as error:  # it may be there already
            refusal = error
        try:
            with translated():
                request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
                self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        except RefusedError as error:
            raise refusal or error from None
        return int(self._node.node_id)

    def heartbeat(self) -> None:
        """Tell that the node is alive."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        with translated():
            self._client.SendNodeHeartbeat(request)

    def receive(self) -> Header | None:
        """The next message for this node."""
        with translated():
            got = self._client.PullMessages(PullMessagesRequest(node=self._node))
        found = list(zip(got.messages_list, got.message_object_trees, strict=True))
        return Header.of(*found[0]) if found else None

    def fetch(self, header: Header, stop: threading.Event) -> Message:
        """The content of a message."""

        def pull(number: str) -> PullObjectResponse:
            return self._client.PullObject(PullObjectRequest(node=self._node, run_id=header.run, object_id=number))

        return _fetched(header, pull, None, stop)

    def confirm(self, header: Header) -> None:
        """Tell the SuperLink that it may drop the content of a message; if this fails, it keeps it longer."""
        with suppress(Exception), translated():
            done = ConfirmMessageReceivedRequest(node=self._node, run_id=header.run, message_object_id=header.id)
            self._client.ConfirmMessageReceived(done)

    def push(self, reply: Message, seconds: float, again: bool = False) -> None:
        """Send an answer that took so long; `again` if it was tried before, and may have been cut off halfway."""
        with no_object_id_recompute(), translated():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects, run = get_all_nested_objects(reply), reply.metadata.run_id
            told = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                )
            )
            wanted = {*told.objects_to_push}
            known = again and not wanted
            """The server is fetching the answer already, so the SuperLink does not say which parts it lacks."""
            for number in [each for each in objects if known or each in wanted]:
                request = PushObjectRequest(node=self._node, run_id=run, object_id=number)
                request.session_id = "" if known else told.session_id  # "" is whichever lacks this part
                request.object_content = objects[number].deflate()
                if not self._client.PushObject(request).stored and not known:
                    raise ConnectionError("the SuperLink did not keep a part of the answer")

    def disconnect(self, number: int) -> bool:
        """Say that an earlier process with this node's key and number is gone, and close; whether it was connected."""
        try:
            with translated():
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=number))
        except (ConnectionError, RefusedError):
            return False
        finally:
            self._client.close()
        return True

    def close(self) -> None:
        """Take no more messages, and say so."""
        with suppress(ConnectionError, RefusedError), translated():
            if self._node.node_id:
                self._client._client.timeout = 3.0
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
                if not self._known:
                    self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self._node.node_id))
        self._client.close()


class RuntimeLine:
    """The server's connection to the SuperLink, beside the one that Flower uses for itself.

    Flower's own one tries again without end, and waits for nodes that are still sending.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self.grid = copy.copy(grid)
        self.grid._client = None
        retry = self.grid._retry_invoker = make_simple_http_retry_invoker()
        retry.max_time = _RETRIES
        again = cast(tuple[type[Exception], ...], retry.recoverable_exceptions)
        retry.recoverable_exceptions = tuple(each for each in again if not issubclass(each, httpx.TimeoutException))
        self._client = self.grid._runtime_client
        self._client._client.timeout = _TIMEOUT
        self._client._client.event_hooks = {"response": [self._before_it_is_read]}
        self._most = threading.local()
        self._halves: list[tuple[int, str]] = []
        """Messages that may have been sent in part, by run and name."""

    def push(self, message: Message) -> str:
        """Send a message; its name, or nothing if the node is unknown.

        What an earlier call has sent in part is withdrawn first: a node that waits for the rest would take nothing
        else for minutes. The caller sends it again, as another message.
        """
        with translated():
            while self._halves:
                self._confirm(*self._halves[-1])
                self._halves.pop()
            try:
                (name,) = self.grid.push_messages([message]) or [""]
            except BaseException:
                self._halves.append((message.metadata.run_id, message.metadata.message_id))
                raise
        return str(name)

    def answered(self, messages: Collection[str]) -> list[Header]:
        """The answers to these messages that have come; each is told once."""
        with translated():
            got = self._client.PullMessages(PullAppMessagesRequest(message_ids=messages))
        return [Header.of(*each) for each in zip(got.messages_list, got.message_object_trees, strict=True)]

    def fetch(self, header: Header, most: int | None, stop: threading.Event) -> Message:
        """The content of an answer; raises TooLargeError or GoneError."""
        node, run = self.grid.node, header.run

        def pull(number: str) -> PullObjectResponse:
            return self._client.PullObject(PullObjectRequest(node=node, run_id=run, object_id=number))

        self._most.bytes = most
        try:
            return _fetched(header, pull, most, stop)
        finally:
            self._most.bytes = None

    def confirm(self, header: Header) -> None:
        """Tell the SuperLink that it may drop the content of an answer; if this fails, it keeps it longer."""
        with suppress(Exception), translated():
            self._confirm(header.run, header.id)

    def _before_it_is_read(self, response: httpx.Response) -> None:
        """A part of an answer may be too large by itself."""
        _allow(int(response.headers.get("content-length", 0)) - _AROUND, getattr(self._most, "bytes", None))

    def _confirm(self, run: int, message: str) -> None:
        """Have the content of a message dropped."""
        done = ConfirmMessageReceivedRequest(node=self.grid.node, run_id=run, message_object_id=message)
        self._client.ConfirmMessageReceived(done)

    def close(self) -> None:
        """Only this connection."""
        self._client.close()


def register(link: Link, publics: Mapping[str, bytes]) -> dict[str, int]:
    """Let the nodes with these public keys take part, where they are not known yet; their numbers."""
    own = [RuntimeVersionHttpInterceptor("flwr CLI")]
    with closing(ControlHttpClient(link.url, interceptors=own, verify=link.trust(), timeout=_TIMEOUT)) as client:
        with translated():
            told = client.ListNodes(ListNodesRequest()).nodes_info
        known = {each.public_key: int(each.node_id) for each in told if each.status != "unregistered"}
        for name, public in publics.items():
            try:
                with translated():
                    request = RegisterNodeRequest(public_key=public)
                    known[public] = known.get(public) or int(client.RegisterNode(request).node_id)
            except RefusedError as error:
                raise RefusedError(f"{name}: {error}") from None
    return {name: known[public] for name, public in publics.items()}


def runtime_line(grid: Grid) -> RuntimeLine | None:
    """A server's connection; None for a grid that is not connected with a SuperLink."""
    return RuntimeLine(grid) if isinstance(grid, HttpGrid) else None
