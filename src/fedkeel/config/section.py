"""The base of every section of an experiment, and its errors in one clear sentence each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedkeel.errors import InputError, UnknownSettingError, label, no_such_setting, one_of, shown, unknown

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(gt=0, le=1_000_000_000)]
Size = Annotated[float, Field(gt=0, le=1e38)]
"""A positive number that float32 can hold."""
RULES = ("client", "server")
"""Halves of a method that may be taken from another one: `client: fedsam` means `algorithm: {client: fedsam}`."""
MOST_PROBLEMS = 5
"""How many errors are told at once."""
BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
"""Pydantic's errors about ranges: in words, and the constraint's own name."""
WANTED = "\0"
"""Stands in a sentence for what a setting must be."""
Advice = Callable[[UnknownSettingError], str]
"""What to do about a key that is not known where it was given; empty if there is nothing to say."""


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


def explain(
    error: ValidationError, section: type[BaseModel], field: str = "", advise: Advice | None = None
) -> InputError:
    """The same error in plain sentences, one line for each thing that is wrong.

    `advise` knows which settings there are elsewhere, for a key that is not known where it was given.
    """
    wanted: dict[str, list[str]] = {}
    for details in error.errors(include_url=False):
        problem = _problem(details, section, field, advise)
        if problem.sentence not in wanted and len(wanted) == MOST_PROBLEMS:
            return InputError("\n".join([*_lines(wanted), "and more"]))
        wanted.setdefault(problem.sentence, []).extend([problem.wanted] if problem.wanted else [])
    return InputError("\n".join(_lines(wanted)))


def _lines(wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """A setting that may be of several kinds has one line, with all of them."""
    return [sentence.replace(WANTED, one_of([*dict.fromkeys(kinds)] or [""])) for sentence, kinds in wanted.items()]


class _Problem(NamedTuple):
    sentence: str
    wanted: str = ""
    """What stands at the place of `WANTED`."""


def _problem(error: ErrorDetails, section: type[BaseModel], field: str, advise: Advice | None) -> _Problem:
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, UnknownSettingError):
        return _Problem(str(_advised(cause, advise)))
    if isinstance(cause, InputError):
        return _Problem(str(cause))
    path, owner = _path(error["loc"], section)
    name = ".".join(filter(None, [field, *path]))
    got = shown(error["input"])
    match error["type"]:
        case "extra_forbidden":
            kind = owner.model_fields.get("kind")
            above = ".".join(filter(None, [field, *path[:-1]]))
            refusal = no_such_setting(above, error["loc"][-1], kind.default if kind else "", owner.model_fields)
            return _Problem(str(_advised(refusal, advise)))
        case "union_tag_invalid":
            context = error["ctx"]
            tag, tags = _bare(context["discriminator"]).removesuffix("()"), _bare(context["expected_tags"]).split(", ")
            return _Problem(str(unknown(f"{name}.{tag}", context["tag"], tags)))
        case "missing":
            setting = owner.model_fields.get(str(error["loc"][-1]))
            return _Problem(f"{name} is missing; give it {_wanted(setting) if setting else 'a value'}")
        case "value_error" | "assertion_error":
            reason = error["msg"].partition(", ")[2] or "it is not valid"
            return _Problem(f"{name}: {reason}" if isinstance(error["input"], dict) else f"{name}: {reason}; got {got}")
    meant = _share_meant(error)
    return _Problem(
        f"{name} must be {WANTED}; got {got}{f'; did you mean {meant:g}?' * bool(meant)}", must_be(error, owner)
    )


def _share_meant(error: ErrorDetails) -> float:
    """The share that a percentage stands for: 0.2 for 20 or '20%'; 0 where none was given."""
    value, number = error["input"], 0.0
    at_most = error["type"] == "less_than_equal" and error["ctx"]["le"] == 1
    if at_most and isinstance(value, int | float):
        number = float(value)
    elif error["type"] == "float_parsing" and isinstance(value, str) and value.strip().endswith("%"):
        try:
            number = float(value.strip().removesuffix("%"))
        except ValueError:
            return 0.0
    return number / 100 if 2 <= number <= 100 or (number and isinstance(value, str)) else 0.0


def _advised(error: UnknownSettingError, advise: Advice | None) -> InputError:
    """With what is known of other sections."""
    advice = advise(error) if advise is not None else ""
    return no_such_setting(error.section, error.key, error.owner, error.names, advice) if advice else error


def must_be(error: ErrorDetails, owner: type[BaseModel] | None = None) -> str:
    """What pydantic expects, as what stands behind 'must be'."""
    context = error.get("ctx", {})
    if error["type"] in BOUNDS:
        word, name = BOUNDS[error["type"]]
        return f"{word} {_number(context[name])}"
    match error["type"]:
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return "an integer"
        case "float_type" | "float_parsing":
            return "a number"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "string_type":
            return "a string"
        case "literal_error":
            return str(context["expected"])
        case "tuple_type" | "list_type":
            return "a list such as [a, b]"
        case "too_short" | "too_long":
            least = error["type"] == "too_short"
            return f"a list of at {'least' if least else 'most'} {context['min_length' if least else 'max_length']}"
        case "model_type" | "model_attributes_type" | "union_tag_not_found" | "dict_type":
            return _as_section(error["loc"], owner)
    reason = error["msg"].removeprefix("Input should be ").partition(", unable")[0]
    return reason[:1].lower() + reason[1:]


def _as_section(loc: tuple[int | str, ...], owner: type[BaseModel] | None) -> str:
    """How a section may be given; those that choose something may be given by a name alone."""
    field = owner.model_fields.get(str(loc[-1])) if loc and owner is not None else None
    chosen = any({"name", "kind"} & each.model_fields.keys() for each in _sections(field.annotation)) if field else True
    if chosen:
        return "a name or a section of settings"
    inside = (
        next(iter(_sections(field.annotation)[0].model_fields), "") if field and _sections(field.annotation) else ""
    )
    return f"a section of settings, such as {loc[-1]}.{inside}" if inside else "a section of settings"


def _bare(text: str) -> str:
    return text.replace("'", "")


def _wanted(setting: FieldInfo) -> str:
    """What a setting may be, roughly."""
    kinds: dict[Any, str] = {float: "a number", int: "an integer", str: "a word"}
    what = kinds.get(setting.annotation, "a value")
    found = (
        f" {words} {_number(getattr(m, name))}"
        for m in setting.metadata
        for words, name in BOUNDS.values()
        if getattr(m, name, None) is not None
    )
    return what + next(found, "")


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


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
