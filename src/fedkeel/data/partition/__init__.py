"""How samples are dealt out to clients."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag

from fedkeel.config import usercode
from fedkeel.data.partition.assignment import Assignment
from fedkeel.data.partition.base import Partition
from fedkeel.data.partition.classes import Classes
from fedkeel.data.partition.column import Column
from fedkeel.data.partition.dirichlet import Dirichlet
from fedkeel.data.partition.iid import Iid
from fedkeel.data.partition.own import Own
from fedkeel.data.partition.shards import Shards
from fedkeel.errors import unknown

__all__ = [
    "ALIASES",
    "DEFAULT",
    "AnyPartition",
    "Assignment",
    "Classes",
    "Column",
    "Dirichlet",
    "Iid",
    "Own",
    "Partition",
    "Shards",
    "describe",
    "names",
    "options",
    "section",
]

ALIASES = {"pathological": "shards"}
"""Other names that `kind` may have."""

DEFAULT = "iid"
"""The kind where none is given."""
OWN = "module:function"

_KINDS: dict[str, type[Partition]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "shards": Shards,
    "classes": Classes,
    "column": Column,
}


def _spelled_out(given: Any) -> Any:
    match given:
        case str(kind):
            return {"kind": ALIASES.get(kind, kind)}
        case {"kind": str(kind), **rest}:
            return {"kind": ALIASES.get(kind, kind), **rest}
        case {**rest} if "kind" not in rest:
            return {"kind": DEFAULT, **rest}
    return given


def kind(given: Any) -> Any:
    """Which of the classes a section means."""
    named = given.get("kind") if isinstance(given, dict) else getattr(given, "kind", None)
    return OWN if usercode.is_own(named) else named


AnyPartition = Annotated[
    Annotated[Iid, Tag("iid")]
    | Annotated[Dirichlet, Tag("dirichlet")]
    | Annotated[Shards, Tag("shards")]
    | Annotated[Classes, Tag("classes")]
    | Annotated[Column, Tag("column")]
    | Annotated[Own, Tag(OWN)],
    Discriminator(kind),
    BeforeValidator(_spelled_out),
]
"""A field of this type is made from {"kind": ..., ...}, by default "iid", or from the kind alone; aliases are fine.

A kind `module:function` is a function of the user's (`Own`).
"""


def names() -> tuple[str, ...]:
    """Every `kind`, without aliases."""
    return tuple(_KINDS)


def describe(kind: str) -> str:
    """What a kind of partition does, with its source, in one line."""
    return (_find(kind).__doc__ or "").partition("\n")[0]


def options(kind: str) -> dict[str, object]:
    """Its settings with their defaults."""
    return {name: field.default for name, field in _find(kind).model_fields.items() if name != "kind"}


def section(kind: str) -> type[Partition]:
    """The section of a kind."""
    return _find(kind)


def _find(kind: str) -> type[Partition]:
    own = ALIASES.get(kind, kind)
    if own not in _KINDS:
        raise unknown("partition.kind", kind, {*_KINDS, *ALIASES})
    return _KINDS[own]
