"""What the data of a site looks like, without any of its values: sites that train together must have the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np

from fedkeel.data.files.build import OPEN, TEST, VALIDATION, Gathered
from fedkeel.data.files.features import Array, Columns
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.table import Column, Table
from fedkeel.errors import InputError, label

NUMBER, SWITCH, WORDS = "numbers", "true and false", "words"
_ANY = (NUMBER, SWITCH, WORDS)
_PARTS = {OPEN: "training", TEST: "test", VALIDATION: "validation"}


@dataclass(frozen=True)
class Schema:
    """Names and kinds."""

    samples: str
    """`a table`, or what an array holds, and its shape."""
    targets: str
    parts: tuple[str, ...]
    """Which rows the data brings: for training, for a test, for validation."""
    columns: Mapping[str, tuple[str, ...]]
    """By feature, in their order: the kinds that it can be. The first one is that it is read as."""

    @property
    def digest(self) -> str:
        """Of all of it, with the kinds that columns are read as."""
        told = [self.samples, self.targets, self.parts, [[name, kinds[0]] for name, kinds in self.columns.items()]]
        return blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()

    def to_wire(self) -> dict[str, Any]:
        """Plain values of JSON."""
        columns = [[name, *kinds] for name, kinds in self.columns.items()]
        return {"samples": self.samples, "targets": self.targets, "parts": [*self.parts], "columns": columns}

    @classmethod
    def from_wire(cls, facts: Mapping[str, Any]) -> Self:
        """The schema again; refuses what is none."""
        try:
            columns = {str(name): (str(kind), *map(str, more)) for name, kind, *more in facts["columns"]}
            if not {kind for kinds in columns.values() for kind in kinds} <= {*_ANY}:
                raise ValueError
            return cls(str(facts["samples"]), str(facts["targets"]), tuple(map(str, facts["parts"])), columns)
        except (KeyError, TypeError, ValueError):
            raise InputError("a schema must tell samples, targets, parts and columns") from None


def schema_of(rows: Gathered, table: Table | None, settings: FileSettings) -> Schema:
    """Of the rows of a site, and the table that they were read from, if it was one."""
    if isinstance(rows.features, Array):
        x = rows.features.x
        kind = "token ids" if settings.vocabulary is not None else "bytes" if x.dtype == np.uint8 else NUMBER
        samples, columns = f"{kind} of shape {list(x.shape[1:])}", {}
    else:
        assert isinstance(rows.features, Columns)
        order = rows.features.order
        samples = "a table"
        columns = {name: (NUMBER,) if table is None else _kinds(name, table.columns[name], settings) for name in order}
    parts = tuple(_PARTS[part] for part in np.unique(rows.part).tolist())
    return Schema(samples, _targets(rows), parts, columns)


def _kinds(name: str, column: Column, settings: FileSettings) -> tuple[str, ...]:
    """A column without values can be any of them; one of categories can be read in two ways if that makes no odds."""
    own = WORDS if column.numbers is None else SWITCH if column.kind == "boolean" else NUMBER
    if name in settings.categorical:
        same = column.words() == column.names()
        return (own,) if own == WORDS or not same else (WORDS, own)
    return _ANY if column.missing.all() else (own,)


def _targets(rows: Gathered) -> str:
    if rows.y.dtype.kind != "i":
        return f"{NUMBER} of shape {list(rows.y.shape[1:])}"
    called = f" {', '.join(rows.classes)}" if rows.classes else ""
    return f"{'classes' if rows.y.ndim == 1 else 'labels'}{called} of shape {list(rows.y.shape[1:])}"


def agree(schemas: Sequence[Schema], names: Sequence[str]) -> Schema:
    """At the server: the schema that fits all sites, with the columns in the order of the first; refuses others.

    A site that has no value of a column reads it as the others do.
    """
    for field, what in (("samples", "samples are"), ("targets", "targets are"), ("parts", "rows are for")):
        told = [getattr(each, field) for each in schemas]
        _check([each if isinstance(each, str) else ", ".join(each) for each in told], names, what)
    first = schemas[0].columns
    for name in dict.fromkeys(name for each in schemas for name in each.columns):
        _check(["there" if name in each.columns else "not there" for each in schemas], names, f"column {name!r} is")
    agreed = {}
    for name in first:
        common = {*first[name]}.intersection(*(each.columns[name] for each in schemas))
        if not common:
            sure = {site: each.columns[name] for site, each in zip(names, schemas, strict=True)}
            sure = {site: kinds for site, kinds in sure.items() if len(kinds) < len(_ANY)}
            _check([kinds[0] for kinds in sure.values()], [*sure], f"column {name!r} holds")
        agreed[name] = (next(kind for kind in first[name] if kind in common),)
    return Schema(schemas[0].samples, schemas[0].targets, schemas[0].parts, agreed)


def _check(told: Sequence[str], names: Sequence[str], what: str) -> None:
    """Refuse sites that tell different things, with who tells what."""
    if len({*told}) == 1:
        return
    who = {each: [label(name) for name, other in zip(names, told, strict=True) if other == each] for each in told}
    sides = [f"{label(each)} at {_some(sites)}" for each, sites in sorted(who.items(), key=lambda side: -len(side[1]))]
    raise InputError(
        f"data: {what} {', but '.join(sides)}; give all sites data of the same form. dataset.features, "
        "dataset.categorical, dataset.missing_values and dataset.target_type say how columns are read"
    )


def _some(sites: Sequence[str]) -> str:
    return ", ".join(sites[:5]) + (f" and {len(sites) - 5} more" if len(sites) > 5 else "")
