"""How an experiment may be spelled: shorthands, dotted keys, and rules of other methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkeel import methods
from fedkeel.config.section import RULES, Section, named
from fedkeel.errors import InputError, label, shown

SHORTHAND = {
    "dataset": "name",
    "model": "name",
    "algorithm": "name",
    "partition": "kind",
    "executor": "kind",
    "wire": "kind",
}
"""Sections that may be given by one word: `model: lenet5` means `model: {name: lenet5}`."""
LISTS = {"wire"}
"""Lists of sections that may be given by one section: `wire: {kind: cast}` means `wire: [{kind: cast}]`."""


def rules_inside(values: dict[str, Any]) -> dict[str, Any]:
    """`client: fedsam` is short for `algorithm: {client: fedsam}`, and `server` likewise."""
    rules = {side: values[side] for side in RULES if side in values}
    algorithm = spelled_out("algorithm", values.get("algorithm", {})) if rules else None
    if isinstance(algorithm, Section):
        algorithm = chosen(algorithm.model_dump())
    elif isinstance(algorithm, dict):
        for side in rules:
            if algorithm.get(side) not in (None, rules[side]):
                raise InputError(
                    f"{side}: {shown(rules[side])}, but algorithm.{side}: {shown(algorithm[side])}; accepted: one of "
                    "them"
                )
    if not isinstance(algorithm, dict):  # nothing to do, or for pydantic to refuse
        return values
    return {**{k: v for k, v in values.items() if k not in RULES}, "algorithm": {**algorithm, **rules}}


def chosen(algorithm: Any) -> Any:
    """Without what is only a default of the rules it names: other rules have other defaults."""
    name, given = named(algorithm, "fedavg")
    rules = {side: given.pop(side) for side in RULES if isinstance(given.get(side), str)}
    try:
        defaults = methods.compose(name or "", **rules).defaults
    except InputError:
        return algorithm  # for pydantic to refuse
    return {"name": name, **rules, **{k: v for k, v in given.items() if v is not None and v != defaults.get(k)}}


def spelled_out(key: str, value: Any) -> Any:
    """A section, also where it is given by one word."""
    return {SHORTHAND[key]: value} if key in SHORTHAND and isinstance(value, str) else value


def listed(key: str, value: Any) -> Any:
    """A list of sections, also where it is given by one of them."""
    return [value] if key in LISTS and isinstance(value, dict | Section) else value


def put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a dotted key: `model=x` replaces the section, `model.name=x` changes one setting of it."""
    *sections, last = path
    for depth, name in enumerate(sections):
        section = spelled_out(name, values.get(name))
        if not isinstance(section, dict | None):
            where = label(".".join(path[: depth + 1]))
            raise InputError(f"{label('.'.join(path))}: {where} is {shown(section)}, which has no settings below it")
        values[name] = {**(section or {})}
        values = values[name]
    values[last] = value
