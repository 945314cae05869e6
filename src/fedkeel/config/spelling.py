"""How an experiment may be spelled: shorthands, dotted keys, and rules of other methods."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import inf
from typing import Any

import yaml

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
    "loss": "name",
    "local.schedule": "kind",
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
                    f"{side} is {shown(rules[side])}, but algorithm.{side} is {shown(algorithm[side])}; keep one of "
                    "the two"
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


def put(values: dict[str, Any], path: Sequence[str], value: Any, above: str = "") -> None:
    """Set a dotted key: `model=x` replaces the section, `model.name=x` changes one setting of it.

    In a list of sections, a number is a place: `wire.0.norm=5`. `above` is the key of `values` itself, with a dot.
    """
    name, *below = path
    if not below:
        values[name] = value
        return
    full = above + name
    section, key, where = spelled_out(full, values.get(name)), label(above + ".".join(path)), label(full)
    places = listed(name, section) or []
    is_list = where in LISTS and isinstance(places, list)
    if is_list and below[0].isdecimal():
        parts = {str(place): spelled_out(name, part) for place, part in enumerate(places)}
        if below[0] not in parts:
            there = " to ".join(dict.fromkeys(f"{where}.{place}" for place in (0, len(parts) - 1)))
            advice = f"use {there}" if parts else f"{where} is empty, so set {where} itself"
            raise InputError(f"{key}: there is no {label(f'{where}.{below[0]}')}; {advice}")
        put(parts, below, value, f"{above}{name}.")
        values[name] = [*parts.values()]
    elif isinstance(section, dict | None):
        values[name] = {**(section or {})}
        put(values[name], below, value, f"{above}{name}.")
    else:
        what = f"name a place in it, such as {where}.0" if is_list and places else f"make {where} a section"
        raise InputError(f"{key}: {where} is {shown(section)}, which has no settings below it; {what}")


def dotted(experiment: Mapping[str, Any], aside: Container[str] = ()) -> dict[str, Any]:
    """Settings by their dotted names, as on the command line; without the sections that are to be put aside."""
    found: dict[str, Any] = {}
    for name, value in experiment.items():
        if name in aside:
            continue
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            found[str(name)] = value
    return found


def flow(value: Any) -> str:
    """A value as YAML has it on one line."""
    try:
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=inf)
    except yaml.YAMLError:  # an object of the user's
        return shown(value)
    return label(text.removesuffix("\n").removesuffix("\n..."))
