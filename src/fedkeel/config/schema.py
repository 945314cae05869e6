"""A JSON schema for experiment files, with the short spellings that YAML files may use.

Editors complete and check by it. It knows types, ranges, names, and the settings of every method, model and partition;
what depends on several settings at once is checked when the experiment is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedkeel import methods, models
from fedkeel.config.algorithm import AlgorithmSettings
from fedkeel.config.catalogue import properties
from fedkeel.config.experiment import Experiment
from fedkeel.config.section import RULES
from fedkeel.config.spelling import LISTS, SHORTHAND
from fedkeel.data import datasets, partition
from fedkeel.models.settings import ModelSettings
from fedkeel.wire.settings import TRANSFORMS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN = {"type": "string", "pattern": ":"}
"""The user's own code, as `module:name`."""
ELSEWHERE = {"type": "string", "pattern": "[:/.]"}
"""Data that is not one of the known data sets: code, or a file."""

Schema = dict[str, Any]


def experiment_schema() -> Schema:
    """Of an experiment; what it refers to is inside `$defs`."""
    found: Schema = properties(Experiment)
    special = {
        "dataset": _dataset(),
        "partition": _partition(),
        "model": _model(),
        "algorithm": _algorithm(),
        "wire": _kinds(TRANSFORMS),
    }
    for name, field in Experiment.model_fields.items():
        section = field.annotation
        if name in special:
            made = special[name]
        elif isinstance(section, type) and issubclass(section, BaseModel):
            made = _object(section)
        else:
            continue
        made = _in_short(name, made)
        found[name] = {key: found[name][key] for key in ("description",) if key in found[name]} | made
    for side in RULES:
        found[side] = properties(AlgorithmSettings)[side]
    whole: Schema = {"type": "object", "additionalProperties": False, "properties": found}
    refers = '"$ref"' in json.dumps(found)  # pydantic's own schema of a field may
    return whole | ({"$defs": Experiment.model_json_schema()["$defs"]} if refers else {})


def _in_short(name: str, section: Schema) -> Schema:
    """A section may be given by the word that it is chosen by, and a list of sections by one of them."""
    if name in SHORTHAND:
        word = section.get("properties", {}).get(SHORTHAND[name], {"type": "string"})
        short = {key: value for key, value in word.items() if key not in ("default", "description")}
        section = {"anyOf": [short, section]}
    return {"anyOf": [section, {"type": "array", "items": section}]} if name in LISTS else section


def _object(section: type[BaseModel], more: Mapping[str, Schema] | None = None) -> Schema:
    """A section without unknown keys."""
    found = {name: _with_numbers(schema) for name, schema in (properties(section) | dict(more or {})).items()}
    required = [name for name, field in section.model_fields.items() if field.is_required()]
    made: Schema = {"type": "object", "additionalProperties": False, "properties": found}
    return made | ({"required": required} if required else {})


def _with_numbers(schema: Schema) -> Schema:
    """A word made of digits may be given as a number, as YAML reads it."""
    digits = [int(word) for word in schema.get("enum", ()) if isinstance(word, str) and word.isdecimal()]
    if not digits:
        return schema
    bare = {key: value for key, value in schema.items() if key != "type"}
    return {**bare, "enum": [*schema["enum"], *digits]}


def _names(known: Iterable[str], others: Schema) -> Schema:
    return {"anyOf": [{"enum": [*known]}, others]}


def _dataset() -> Schema:
    section = _object(Experiment.model_fields["dataset"].annotation)  # type: ignore[arg-type]
    name = section["properties"]["name"]
    section["properties"]["name"] = {**_described(name), **_names(datasets.known(), ELSEWHERE)}
    return section


def _described(schema: Schema) -> Schema:
    return {key: schema[key] for key in ("description", "default") if key in schema}


def _choice(word: str, name: Schema, default: str, forms: Mapping[str, Schema], unless: Sequence[str] = ()) -> Schema:
    """A section whose settings depend on the word in it; not where it says something of `unless`.

    Names of the user's own code leave its settings open.
    """
    closed: list[Schema] = []
    for known, form in forms.items():
        this: Schema = {"properties": {word: {"const": known}}}
        this |= {} if known == default else {"required": [word]}
        others = [{"not": {"required": [key], "properties": {key: {"type": "string"}}}} for key in unless]
        closed.append({"if": {"allOf": [this, *others]} if others else this, "then": form})
    return {"type": "object", "properties": {word: name}, "allOf": closed}


def _partition() -> Schema:
    kinds = {kind: _object(partition.section(kind)) for kind in partition.names()}
    for alias, kind in partition.ALIASES.items():
        form = kinds[kind]
        kinds[alias] = {**form, "properties": {**form["properties"], "kind": {"const": alias}}}
    told = properties(partition.Partition)["kind"]
    name = {**_described(told), "default": partition.DEFAULT, **_names(kinds, OWN)}
    return _choice("kind", name, partition.DEFAULT, kinds)


def _model() -> Schema:
    told = properties(ModelSettings)["name"]
    name = {**_described(told), **_names(models.names(), OWN)}
    forms = {each: _closed({"name": {}, **_model_options(each)}) for each in models.names()}
    return _choice("name", name, told["default"], forms)


def _model_options(name: str) -> dict[str, Schema]:
    known = {key: (default, models.option(key)) for key, default in models.options(name).items()}
    return {
        key: {"description": option.meaning, "default": default, **option.schema}
        for key, (default, option) in known.items()
    }


def _algorithm() -> Schema:
    own = properties(AlgorithmSettings)
    name = {**_described(own["name"]), **_names(methods.methods(), OWN)}
    forms = {}
    for each in methods.methods().values():
        rules = {**properties(each.client), **properties(each.server)}
        forms[each.name] = _closed({**own, "name": {}, **{key: _with_numbers(rule) for key, rule in rules.items()}})
    chosen = _choice("name", name, own["name"]["default"], forms, unless=RULES)
    chosen["properties"] |= {side: own[side] for side in RULES}
    return chosen


def _closed(found: Mapping[str, Schema]) -> Schema:
    return {"additionalProperties": False, "properties": {**found}}


def _kinds(sections: Iterable[type[BaseModel]]) -> Schema:
    """One of several sections, told apart by their kind."""
    forms = {section.model_fields["kind"].default: _object(section) for section in sections}
    return {"type": "object", "required": ["kind"], **_choice("kind", {"enum": [*forms]}, "", forms)}
