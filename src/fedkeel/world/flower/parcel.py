"""A message of fedkeel inside one of Flower: one array of bytes, which Flower divides into chunks."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from fedkeel.world.remote.envelope import EnvelopeError

KIND = "query"
"""Flower's type of all messages."""
NAME = "fedkeel"


def packed(body: bytes) -> RecordDict:
    """The content of Flower's message."""
    array = Array(dtype="uint8", shape=(len(body),), stype=NAME, data=body)
    return RecordDict({NAME: ArrayRecord({NAME: array})})


def unpacked(content: RecordDict) -> bytes:
    """The bytes again; refuses what others made."""
    record = content.get(NAME)
    array = record.get(NAME) if isinstance(record, ArrayRecord) else None
    if array is None or array.stype != NAME:
        raise EnvelopeError("it is no message of fedkeel")
    return array.data
