"""The base of every section of an experiment, and its errors in one clear sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedkeel.errors import InputError, label, shown, unknown

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(gt=0, le=1_000_000_000)]
Size = Annotated[float, Field(gt=0, le=1e38)]
"""A positive number that float32 can hold."""
RULES = ("client", "server")
"""Halves of a method that may be taken from another one: `client: fedsam` means `algorithm: {client: fedsam}`."""
MOST_PROBLEMS = 5
"""How many errors are told at once."""


class Section(BaseModel):
    """A frozen group of settings; unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @property
    def plans_ahead(self) -> str | None:
        """Why a round depends on how many rounds there will be, if it does; then a run cannot be given other rounds."""
        return None

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, values: Any) -> Any:
        """YAML's true is a word where a setting is not a switch, so that `rounds: true` is refused."""
        if not isinstance(values, dict):
            return values
        words = {name for name, field in cls.model_fields.items() if field.annotation not in (bool, Any)}
        named = {k if isinstance(k, str) else shown(k): v for k, v in values.items()}
        return {k: str(v).lower() if isinstance(v, bool) and k in words else v for k, v in named.items()}


S = TypeVar("S", bound=Section)


def make(section: type[S], values: Mapping[str, Any], field: str = "") -> S:
    """`section(**values)`, with pydantic's errors told as InputError; `field` is the section's own name."""
    try:
        return section(**values)
    except ValidationError as error:
        raise explain(error, section, field) from None


def explain(error: ValidationError, section: type[BaseModel], field: str = "") -> InputError:
    """The same error with field, value and what would be accepted, one line for each thing that is wrong."""
    reasons: dict[str, list[str]] = {}
    for details in error.errors(include_url=False):
        problem, accepted = _problem(details, section, field)
        if problem not in reasons and len(reasons) == MOST_PROBLEMS:
            problem, accepted = "and more", ""
        reasons.setdefault(problem, []).extend([accepted] if accepted else [])
        if len(reasons) > MOST_PROBLEMS:
            break
    return InputError("\n".join(f"{p}; accepted: {' or '.join(a)}" if a else p for p, a in reasons.items()))


def _problem(error: ErrorDetails, section: type[BaseModel], field: str) -> tuple[str, str]:
    """What is wrong, and what would be accepted where the first does not say it."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return str(cause), ""
    path, owner = _path(error["loc"], section)
    name = ".".join(filter(None, [field, *path]))
    if error["type"] == "extra_forbidden":
        kind = owner.model_fields.get("kind")
        what = f"setting of {kind.default}" if kind else "setting"
        return str(unknown(name, error["loc"][-1], owner.model_fields, what)), ""
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        tag, tags = _bare(context["discriminator"]).removesuffix("()"), _bare(context["expected_tags"]).split(", ")
        return str(unknown(f"{name}.{tag}", context["tag"], tags)), ""
    if error["type"] == "missing":
        setting = owner.model_fields.get(str(error["loc"][-1]))
        return f"{name}: this setting is missing", _wanted(setting) if setting else "a value"
    if error["type"] in {"model_type", "model_attributes_type", "union_tag_not_found"}:
        return f"{name}: {shown(error['input'])} is not accepted", "a name or a section of settings"
    if error["type"] in {"tuple_type", "list_type"}:
        return f"{name}: {shown(error['input'])} is not accepted", "a list such as [a, b]"
    if error["type"] == "too_short":
        return f"{name}: {shown(error['input'])} is not accepted", f"at least {error['ctx']['min_length']} of them"
    reason = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ").partition(", unable")[0]
    return f"{name}: {shown(error['input'])} is not accepted", reason[:1].lower() + reason[1:]


def _bare(text: str) -> str:
    return text.replace("'", "")


def _wanted(setting: FieldInfo) -> str:
    """What a setting may be, roughly."""
    kinds: dict[Any, str] = {float: "a number", int: "an integer", str: "a word"}
    what = kinds.get(setting.annotation, "a value")
    bounds = {"gt": "greater than", "ge": "at least"}
    found = (
        f" {words} {getattr(m, name):g}" for m in setting.metadata for name, words in bounds.items() if hasattr(m, name)
    )
    return what + next(found, "")


def _path(loc: tuple[int | str, ...], section: type[BaseModel]) -> tuple[list[str], type[BaseModel]]:
    """The dotted path without the tags of unions, and the section that owns its last element."""
    path: list[str] = []
    owner = section
    inner: list[type[BaseModel]] = []
    for part in loc:
        tagged = [s for s in inner if "kind" in s.model_fields and s.model_fields["kind"].default == part]
        if tagged:
            owner, inner = tagged[0], []
            continue
        if isinstance(part, int) and inner:  # a place in a list of sections
            path.append(str(part))
            continue
        if len(inner) == 1:
            owner = inner[0]
        if isinstance(part, str) and _is_union_branch(part):
            continue
        path.append(label(part))
        inner = _sections(owner.model_fields[path[-1]].annotation) if path[-1] in owner.model_fields else []
    return path, owner


def _is_union_branch(part: str) -> bool:
    """Pydantic names the branch of a union in an error's path: 'constrained-int', "literal['full']"."""
    return "[" in part or part.startswith("constrained-") or part in {"int", "float", "str"}


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field's type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [s for a in getattr(annotation, "__args__", ()) for s in _sections(a)]


def named(values: Any, default: str) -> tuple[str | None, dict[str, Any]]:
    """A section's name and what else it says; no name where that is for pydantic to refuse."""
    if not isinstance(values, dict):
        return None, {}
    name = values.get("name", default)
    return name if isinstance(name, str) else None, {str(k): v for k, v in values.items() if k != "name"}
