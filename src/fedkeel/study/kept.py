"""The file of a plan: what is compared, by names and settings. Reading it imports no code of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import fedkeel
from fedkeel.config.usercode import GIVEN, is_own
from fedkeel.errors import InputError, label
from fedkeel.study.plan import Case, Comparison, Measure

PLAN = "comparison.json"
SCHEMA = 1


class KeptCase(BaseModel):
    """One run of a plan."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(pattern=r"^[^/\\\x00]*[^/\\\x00.][^/\\\x00]*$")]
    """The name of its folder; no path that leads elsewhere."""
    scene: str
    variant: str
    seed: Annotated[int, Field(ge=0)]
    experiment: dict[str, Any]


class KeptPlan(BaseModel):
    """A plan as it was written down."""

    model_config = ConfigDict(frozen=True)

    title: str
    command: str
    measure: Measure
    code: dict[str, str] = Field(default_factory=dict)
    """Digests of the user's modules."""
    cases: Annotated[tuple[KeptCase, ...], Field(min_length=1)]


def read(told: Any) -> KeptPlan:
    """What a file holds, if it is whole and of a version that is known."""
    if not isinstance(told, dict) or not isinstance(told.get("schema"), int):
        raise _damaged("it is no plan")
    if told["schema"] > SCHEMA:
        raise InputError(f"fedkeel {label(str(told.get('fedkeel')))} wrote it, a later version; install that version")
    try:
        return KeptPlan.model_validate(told)
    except ValidationError as error:
        first = error.errors()[0]
        raise _damaged(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _damaged(what: str) -> InputError:
    return InputError(f"{PLAN} is missing or damaged ({label(what)}); name a folder made by fedkeel compare")


def told(plan: Comparison) -> dict[str, Any]:
    """What the file of a plan holds."""
    return {
        "schema": SCHEMA,
        "fedkeel": fedkeel.__version__,
        "title": plan.title,
        "command": plan.command,
        "measure": asdict(plan.measure),
        "code": own_code(plan.cases),
        "cases": [
            {"name": c.name, "scene": c.scene, "variant": c.variant, "seed": c.seed, "experiment": settings(c)}
            for c in plan.cases
        ],
    }


def settings(case: Case) -> dict[str, Any]:
    """The experiment of a run, in values that JSON has."""
    return case.experiment.model_dump(mode="json")


def own_code(cases: Sequence[Case]) -> dict[str, str]:
    """Digests of the modules of the user's that experiments name as `module:name`; not of what these import."""
    found = {name.partition(":")[0] for case in cases for name in _named(case.experiment.model_dump())}
    digests = {}
    for module in sorted(found):
        with suppress(ImportError, ValueError, OSError, AttributeError, TypeError):  # then a run says what is wrong
            spec = find_spec(module)
            if module.partition(".")[0] != fedkeel.__name__ and spec is not None:
                digests[module] = sha256(Path(str(spec.origin)).read_bytes()).hexdigest()[:16]
    return digests


def _named(part: Any) -> Iterator[str]:
    """All values that name code of the user's."""
    inside = part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else ()
    for value in inside:
        if is_own(value) and not value.startswith(GIVEN):
            yield value
        yield from _named(value)
