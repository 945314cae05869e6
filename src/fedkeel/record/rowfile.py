"""Files of rows that grow with a run: written, cut off where a checkpoint says so, and checked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, repeat
from math import isfinite
from pathlib import Path
from typing import Any
from zlib import crc32

_encode = json.JSONEncoder(allow_nan=False).encode
_CHUNK = 1 << 20

Position = dict[str, int]
"""How far a file has been written: its length in bytes and their checksum."""
START: Position = {"bytes": 0, "crc32": 0}


class RowFile:
    """One JSON object a line; what stands behind the last position that a checkpoint knows may be cut off again."""

    def __init__(self, path: Path) -> None:
        """Open or make it; nothing is changed before `rewind` says where to go on."""
        self.path = path
        self._file = path.open("ab")
        self.position = START
        """How far it has been written."""

    def rewind(self, position: Position) -> None:
        """Go on behind that position."""
        self._file.truncate(position["bytes"])
        self.position = position

    def add(self, lines: Iterable[str]) -> None:
        """Write lines, each with its end."""
        text = "".join(lines).encode()
        if not text:
            return
        self._file.write(text)
        self._file.flush()
        before = self.position
        self.position = {"bytes": before["bytes"] + len(text), "crc32": crc32(text, before["crc32"])}

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self._file.fileno())

    def objection(self, position: Position) -> str | None:
        """Why the file cannot be continued from that position, if there is a reason."""
        left, checksum = position["bytes"], 0
        with self.path.open("rb") as file:
            while left and (chunk := file.read(min(left, _CHUNK))):
                checksum, left = crc32(chunk, checksum), left - len(chunk)
        if left:
            return f"{self.path.name} is {left} bytes shorter than it was"
        return None if checksum == position["crc32"] else f"{self.path.name} is not as it was"

    def fileno(self) -> int:
        """Of the open file."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file; errors in closing are ignored: a failed write was reported before."""
        with suppress(OSError):
            self._file.close()


def line(row: Mapping[str, Any]) -> str:
    """One row, as it is written."""
    return _encode(row) + "\n"


def lines(columns: Mapping[str, Sequence[Any]]) -> Iterable[str]:
    """The same for many rows, in pieces, column by column: what is the same in all rows is put into words once."""
    count = len(columns["client"])
    if not count:
        return []
    pieces: list[Iterable[str]] = []
    text = "{"
    for name, column in columns.items():
        text += _key(name)
        if column.count(column[0]) == count:
            text += _text(column[0])
        else:
            pieces += [repeat(text, count), _texts(column)]
            text = ""
        text += ", "
    pieces.append(repeat(text.removesuffix(", ") + "}\n", count))
    return chain.from_iterable(zip(*pieces, strict=True))


@cache
def _key(name: str) -> str:
    return f"{_encode(name)}: "


def _text(value: Any) -> str:
    """One value; what JSON says of plain numbers, Python says faster."""
    return repr(value) if type(value) is int or (type(value) is float and isfinite(value)) else _encode(value)


def _texts(column: Sequence[Any]) -> list[str]:
    kinds = {*map(type, column)}
    if kinds & {list, dict}:
        return [_encode(value) for value in column]
    different = [*{*column}]
    if len(kinds) > 1 or 2 * len(different) > len(column) or 0 in different:  # -0.0 equals 0.0, and 1.0 equals 1
        return _encode(column)[1:-1].split(", ")
    known = dict(zip(different, _encode(different)[1:-1].split(", "), strict=True))
    return [*map(known.__getitem__, column)]
