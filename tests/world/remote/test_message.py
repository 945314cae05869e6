"""Messages there and back, and bytes that are none."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.world.remote import envelope
from fedkeel.world.remote.envelope import EnvelopeError
from fedkeel.world.remote.message import Message, told_why

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
facts_ = st.dictionaries(names.filter(lambda name: name not in ("kind", "protocol")), values, max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    return torch.arange(int(torch.Size(shape).numel())).reshape(shape).to(draw(st.sampled_from(DTYPES)))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    held = draw(st.dictionaries(names.filter(lambda name: name != "__metadata__"), tensors(), max_size=3))
    return Message(draw(st.text(max_size=10)), draw(facts_), held)


@given(messages())
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    back = Message.unpack(message.pack())
    assert (back.kind, dict(back.facts)) == (message.kind, dict(message.facts))
    assert back.tensors.keys() == message.tensors.keys()
    for name, tensor in message.tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)


def test_views_of_one_tensor_travel_each_for_itself() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    back = Message.unpack(Message("x", {}, {"a": base[0], "b": base.T}).pack())
    assert torch.equal(back.tensors["b"], base.T)


@given(messages(), st.data())
def test_mutated_messages_are_messages_or_refused(message: Message, data: st.DataObject) -> None:
    body = bytearray(message.pack())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "remove"])):
            case "flip":
                body[place] = data.draw(st.integers(0, 255))
            case "cut":
                del body[max(1, place) :]
            case "insert":
                body[place:place] = data.draw(st.binary(max_size=9))
            case "remove":
                del body[place : place + 3]
        body = body or bytearray(b"\0")
    with suppress(EnvelopeError):
        assert isinstance(Message.unpack(bytes(body)).kind, str)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(EnvelopeError):
        Message.unpack(body)


def held(told: Any, protocol: Any = envelope.PROTOCOL, **tensors: Any) -> bytes:
    inner = told if isinstance(told, str) else json.dumps({"kind": "x", "protocol": protocol, **told})
    text = json.dumps({"__metadata__": {envelope.KEY: inner}, **tensors}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "body",
    [
        held({}, protocol=2),
        held({}, protocol="1"),
        held({"kind": 3}),
        held("[" * 10**5),
        held('{"kind": "x", "protocol": 1, "n": ' + "9" * 5000 + "}"),
        held("3"),
        (1 << 62).to_bytes(8, "little") + b"{}",
        held({}, w={"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}),
        held({}, w={"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}),
        held({}, w={"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}),
    ],
)
def test_what_is_wrong_is_said(body: bytes) -> None:
    with pytest.raises(EnvelopeError, match=r"no message of fedkeel|protocol|cannot be read"):
        Message.unpack(body)


def test_a_socket_is_read_up_to_a_limit() -> None:
    one, two = socket.socketpair()
    with one, two:
        envelope.send(one, b"x" * 100)
        assert envelope.receive(two, 100) == b"x" * 100
        envelope.send(one, b"x" * 100)
        with pytest.raises(EnvelopeError, match="it has 100 bytes; at most 99"):
            envelope.receive(two, 99)


@pytest.mark.parametrize("why", [None, 3, "a\nb\x1b[2J", "x" * 10**6, ["deep"]])
def test_a_reason_is_one_line(why: object) -> None:
    said = told_why(Message("failed", {"why": why}))
    assert said.isprintable()
    assert len(said) < 600
