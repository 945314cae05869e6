"""A message of fedkeel inside one of Flower.

Flower sends each part of a message by a call of its own. A short message is one record of bytes, so that there are few
parts. A long one is an array, which Flower divides into chunks.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedkeel.world.remote.envelope import EnvelopeError

KIND = "query"
"""Flower's type of all messages."""
NAME = "fedkeel"
SHORT = 1_000_000
"""Bytes of a short message at most."""


def packed(body: bytes) -> RecordDict:
    """The content of Flower's message."""
    if len(body) <= SHORT:
        return RecordDict({NAME: ConfigRecord({NAME: body})})
    array = Array(dtype="uint8", shape=(len(body),), stype=NAME, data=body)
    return RecordDict({NAME: ArrayRecord({NAME: array})})


def unpacked(content: RecordDict) -> bytes:
    """The bytes again; refuses what others made."""
    record = content.get(NAME)
    found = record.get(NAME) if isinstance(record, ConfigRecord | ArrayRecord) else None
    if isinstance(found, bytes):
        return found
    if isinstance(found, Array) and found.stype == NAME:
        return found.data
    raise EnvelopeError("it is no message of fedkeel")
