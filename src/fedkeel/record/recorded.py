"""A row of a file of the run folder: how it is written, and how it is read and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints


class RowError(ValueError):
    """What is wrong with a row that was read."""


class Recorded:
    """A row of a file."""

    extra: ClassVar[str | None] = None
    """The field whose items are keys of the row, beside the other fields."""

    def plain(self) -> dict[str, Any]:
        """As it is written."""
        told = dict(vars(self))
        if self.extra is not None:
            told |= told.pop(self.extra)
        return told

    @classmethod
    def takes(cls, _: object) -> bool:
        """Whether an item of the extra field may have this value; others are left out."""
        return True

    @classmethod
    def read(cls, told: object) -> Self:
        """From what was written; keys that this version does not know are left out."""
        if not isinstance(told, dict):
            raise RowError("it is no row")
        kind: Any = cls
        if cls.extra in told:
            raise RowError(f"{cls.extra} is no key of a row")
        known = accepted(kind)
        given = {name: told[name] for name in known if name in told}
        for name, value in given.items():
            if type(value) not in known[name]:
                raise RowError(f"{name} is a {type(value).__name__}")
        if cls.extra is not None:
            given[cls.extra] = {name: value for name, value in told.items() if name not in given and cls.takes(value)}
        try:
            return cls(**given)
        except TypeError:
            missing = next(name for name in known if name in required(kind) and name not in given)
            raise RowError(f"{missing} is missing") from None


@cache
def required(kind: Any) -> frozenset[str]:
    """The fields without a default."""
    return frozenset(field.name for field in fields(kind) if field.default is MISSING)


@cache
def defaults(kind: Any) -> Mapping[str, Any]:
    """What the other fields say unless told otherwise."""
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


@cache
def accepted(kind: Any) -> Mapping[str, frozenset[type]]:
    """The types of JSON that each field may have."""
    hints = get_type_hints(kind)
    return {field.name: frozenset(_types(hints[field.name])) for field in fields(kind)}


def _types(hint: Any) -> Iterator[type]:
    if get_origin(hint) is UnionType:
        for each in get_args(hint):
            yield from _types(each)
    else:
        yield get_origin(hint) or hint
        if hint is float:
            yield int
