"""The outside of a message, without PyTorch: a relay must start quickly.

A message is the bytes of a safetensors file: eight bytes with the length of a JSON header, the header, then the
tensors. The header's metadata hold the kind of the message and its facts as JSON. Nothing is ever pickled.

Through a socket, a message goes with its length in front, and an answer comes back the same way.
"""

from __future__ import annotations

import json
import socket
from typing import Any

KEY = "fedkeel"
PROTOCOL = 1
"""The version of the messages; server and nodes must have the same."""
FAILED = "failed"
"""The kind of an answer that says why there is no other; its fact is `why`."""
_MAGIC = b"FKM1"
_HEADER = 100_000_000
"""The longest header that is read."""


class EnvelopeError(ValueError):
    """What is wrong with bytes that should be a message."""


def plain(kind: str, **facts: Any) -> bytes:
    """A message without tensors."""
    header = {"__metadata__": {KEY: json.dumps({"kind": kind, "protocol": PROTOCOL, **facts})}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def facts(body: bytes | memoryview) -> dict[str, Any]:
    """The kind and the facts of a message; refuses bytes that are none, and other versions of the protocol."""
    size = int.from_bytes(body[:8], "little")
    if len(body) < 8 or size > min(_HEADER, len(body) - 8):
        raise EnvelopeError("it is no message of fedkeel")
    try:
        told = json.loads(json.loads(bytes(body[8 : 8 + size]))["__metadata__"][KEY])
        kind, protocol = told["kind"], told["protocol"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise EnvelopeError("it is no message of fedkeel") from None
    if not isinstance(kind, str) or protocol != PROTOCOL:
        raise EnvelopeError(
            f"it is a message of protocol {repr(protocol)[:50]}, not {PROTOCOL}; install the same fedkeel there"
        )
    return dict(told)


def send(to: socket.socket, body: bytes) -> None:
    """Write a message to a socket."""
    to.sendall(_MAGIC + len(body).to_bytes(8, "big"))
    to.sendall(body)


def receive(came: socket.socket, most: int) -> bytes:
    """Read a message of at most so many bytes; raises ConnectionError if the other side ends before."""
    head = _exactly(came, len(_MAGIC) + 8)
    size = int.from_bytes(head[len(_MAGIC) :], "big")
    if head[: len(_MAGIC)] != _MAGIC:
        raise EnvelopeError("it is no message of fedkeel")
    if size > most:
        raise EnvelopeError(over(size, most))
    return bytes(_exactly(came, size))


def over(size: int, most: int) -> str:
    """What is said of something that has more bytes than it may."""
    return f"it has {size:,} bytes; at most {most:,} are allowed"


def _exactly(came: socket.socket, size: int) -> bytearray:
    """So many bytes; memory is taken as they come, not as they are announced."""
    data = bytearray()
    while len(data) < size:
        part = came.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError(f"the connection ended after {len(data):,} of {size:,} bytes")
        data += part
    return data
