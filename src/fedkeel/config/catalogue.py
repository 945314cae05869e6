"""All settings in words: what each is by default, what it may be, and what it means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from fedkeel import methods, models
from fedkeel.config.algorithm import AlgorithmSettings
from fedkeel.config.experiment import Experiment
from fedkeel.config.meanings import meaning
from fedkeel.config.section import Section
from fedkeel.config.spelling import LISTS, SHORTHAND, flow
from fedkeel.data import partition
from fedkeel.errors import one_of
from fedkeel.methods import Method
from fedkeel.models.settings import ModelSettings
from fedkeel.wire.settings import TRANSFORMS

WIDE = 1e6
"""Bounds beyond are there to catch mistakes; they hinder nobody and are not told."""


@dataclass(frozen=True)
class Setting:
    """One setting."""

    name: str
    """Dotted, as on the command line."""
    default: str
    """As YAML; empty where there is none."""
    values: str
    meaning: str
    is_section: bool = False


@dataclass(frozen=True)
class Group:
    """Settings that belong together: a section, or what a method, a model or a kind adds to it."""

    section: str
    """The name of the section; empty for the experiment itself."""
    owner: str
    """The method, model or kind; empty for a section that has one form."""
    about: str
    settings: tuple[Setting, ...]


def properties(section: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """The JSON schema of every field, with what it means as its description."""
    made = section.model_json_schema()
    found = {name: {**schema} for name, schema in made.get("properties", {}).items()}
    for name, schema in found.items():
        schema.pop("title", None)
        if told := meaning(section, name):
            schema["description"] = told
    return found


def of_section(section: type[BaseModel], name: str = "") -> tuple[Setting, ...]:
    """The settings of a section; of one that chooses something, without those of the choice."""
    fields = section.model_fields
    return tuple(
        Setting(
            f"{name}.{key}" if name else key,
            _default(key if not name else "", schema, fields[key].is_required()),
            values(key if not name else "", schema),
            schema.get("description", ""),
            not name and (key in SHORTHAND or "$ref" in schema),
        )
        for key, schema in properties(section).items()
    )


def _default(key: str, schema: Mapping[str, Any], required: bool) -> str:
    if required:
        return ""
    default = schema.get("default")
    if isinstance(default, dict):
        return str(default[SHORTHAND[key]]) if key in SHORTHAND else ""
    return flow(default)


def values(key: str, schema: Mapping[str, Any]) -> str:
    """What a value may be, in words; `key` is that of a top-level setting."""
    if key in LISTS:
        return "a name, a section or a list of these"
    if key in SHORTHAND or "$ref" in schema:
        return "a name or a section" if key in SHORTHAND else "a section"
    return one_of([*dict.fromkeys(_alternatives(schema))])


def _alternatives(schema: Mapping[str, Any]) -> list[str]:
    parts = schema.get("anyOf") or schema.get("oneOf")
    if parts:
        return [each for part in parts for each in _alternatives(part)]
    if "enum" in schema or "const" in schema:
        return [flow(each) for each in schema.get("enum", [schema.get("const")])]
    match schema.get("type"):
        case "boolean":
            return ["true", "false"]
        case "null":
            return ["null"]
        case "integer":
            return ["an integer" + _range(schema)]
        case "number":
            return ["a number" + _range(schema)]
        case "array":
            return [_list(schema)]
        case "object":
            return ["a section"]
        case "string":
            return ["text"]
    return ["a section"] if "$ref" in schema else ["any value"]


def _list(schema: Mapping[str, Any]) -> str:
    items = schema.get("prefixItems")
    if items:
        return f"a list of {len(items)}, each {one_of([*dict.fromkeys(one_of(_alternatives(each)) for each in items)])}"
    return f"a list of {one_of(_alternatives(schema.get('items', {})))}"


def _range(schema: Mapping[str, Any]) -> str:
    """` from 1 to 256`, ` above 0`; a least value of nearly nothing is there to keep 0 out."""
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if schema["type"] == "integer" and above is not None:
        least, above = above + 1, None
    if least is not None and 0 < least <= 1 / WIDE:
        least, above = None, 0
    low = f" above {above:g}" if above is not None else f" from {least:g}" if least is not None else ""
    if most is not None and most < WIDE:
        return f"{low} to {most:g}" if least is not None else f"{low}{' and' * bool(low)} up to {most:g}"
    if below is not None and below < WIDE:
        return f"{low}{' and' * bool(low)} below {below:g}"
    return low


def of_method(method: Method) -> tuple[Setting, ...]:
    """The hyper-parameters of both rules."""
    both = (*of_section(method.client, "algorithm"), *of_section(method.server, "algorithm"))
    return tuple({each.name: each for each in both}.values())


def of_model(name: str) -> tuple[Setting, ...]:
    """The options of a model of the zoo."""
    known = {key: (default, models.option(key)) for key, default in models.options(name).items()}
    return tuple(
        Setting(f"model.{key}", flow(default), values("", option.schema), option.meaning)
        for key, (default, option) in known.items()
    )


def method_group(method: Method) -> Group:
    """What a method adds to the section `algorithm`."""
    about = f"{method.about} ({method.cite})." if method.cite else f"{method.about}." if method.about else ""
    return Group("algorithm", method.name, about[:1].upper() + about[1:], of_method(method))


def kinds_group() -> Group:
    """Which kinds of partition there are."""
    kinds = one_of([*partition.names(), "module:function"])
    told = meaning(partition.Partition, "kind")
    return Group(
        "partition", "", meaning(Experiment, "partition"), (Setting("partition.kind", partition.DEFAULT, kinds, told),)
    )


def partition_group(kind: str) -> Group:
    """What a kind of partition adds to the section."""
    settings = of_section(partition.section(kind), "partition")
    return Group(
        "partition", kind, partition.describe(kind), tuple(each for each in settings if each.name != "partition.kind")
    )


def transform_groups() -> list[Group]:
    """What may be done to uploads."""
    return [
        Group("wire", each.model_fields["kind"].default, _first_line(each), of_section(each, "wire.0"))
        for each in TRANSFORMS
    ]


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").partition("\n")[0]


def groups(experiment: Experiment) -> list[Group]:
    """Every setting that this experiment has, section by section."""
    found = [Group("", "", _first_line(Experiment), of_section(Experiment))]
    for name in Experiment.model_fields:
        section = getattr(experiment, name)
        about = meaning(Experiment, name)
        if isinstance(section, AlgorithmSettings):
            found.append(Group(name, "", about, of_section(AlgorithmSettings, name)))
            found.append(method_group(methods.compose(section.name, section.client, section.server)))
        elif isinstance(section, ModelSettings):
            own = of_model(section.name) if section.name in models.names() else _options(name, section.options)
            found += [Group(name, "", about, of_section(ModelSettings, name)), Group(name, section.name, "", own)]
        elif name == "partition":
            users = Group(name, section.kind, "", _options(name, section.model_extra or {}))
            found += [kinds_group(), partition_group(section.kind) if section.kind in partition.names() else users]
        elif name == "wire":
            found += transform_groups()
        elif isinstance(section, Section):
            found.append(Group(name, "", about, of_section(type(section), name)))
    return found


def _options(section: str, options: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Of the user's own function, which says nothing about them."""
    return tuple(Setting(f"{section}.{key}", flow(value), "", "") for key, value in options.items())


def sections() -> Iterable[type[BaseModel]]:
    """Every section there is, of all methods, partitions and transforms."""
    yield Experiment
    yield from (kind for field in Experiment.model_fields.values() for kind in _inside(field.annotation))
    yield from (partition.section(kind) for kind in partition.names())
    yield from TRANSFORMS
    for each in methods.methods().values():
        yield from (each.client, each.server)


def _inside(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _inside(part)
