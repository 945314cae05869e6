"""Comparisons as files and commands describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from fedkeel.config import yamltext
from fedkeel.config.experiment import Experiment
from fedkeel.config.section import Count, Section, explain
from fedkeel.config.spelling import flow
from fedkeel.config.usercode import short
from fedkeel.errors import InputError, UnknownSettingError, label, shown
from fedkeel.methods import find
from fedkeel.record.measured import LOSS, Measured, canonical, declared
from fedkeel.study.plan import At, Case, Comparison, Measure, cross, default_at, goal, key_of, place_of, says

MARKS = ("variants", "scenes", "base")
"""Keys of a comparison that an experiment does not have."""
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Settings = dict[str, list[str]]


class StudyFile(Section):
    """A file that names an experiment, scenes and variants, each with settings on top as on the command line."""

    about: str = ""
    """The title of the comparison."""
    base: str | dict[str, Any] = Field(default_factory=dict)
    """The experiment that is compared under several settings: the path of its file, or its settings."""
    scenes: Settings = Field(default_factory=dict)
    """Situations under which all variants are compared, each a name with a list of settings."""
    variants: Settings = Field(default_factory=dict)
    """What is compared, each a name with a list of settings such as `[algorithm=fedagg]`."""
    seeds: list[Seed] | None = None
    """The seeds with which every variant runs. The default is 0, 1 and 2."""
    fewer_seeds: dict[str, list[Seed]] = Field(default_factory=dict)
    """The seeds of the variants that run with fewer seeds than the others."""
    at: At | None = None
    """The scale on which runs are compared: equal virtual time, rounds, uploads or bytes. The default is time if a
    method is asynchronous, and rounds otherwise."""
    until: Annotated[float, Field(gt=0)] | None = None
    """The value on that scale at which runs are compared. The default is the end of the shortest run."""
    last: Count = 1
    """The number of last evaluations whose mean is the final result."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A value of the metric: the table also says what it took to reach it."""
    reference: str | None = None
    """The variant with which the others are compared. The default is FedAvg, or the first variant."""
    metric: str | None = None
    """The metric by which runs are compared. The default is the first metric of the experiment."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self), advise=_in_base) from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind, names in (("scenes", self.scenes), ("variants", self.variants)):
            for name in names:
                if not name.strip() or not name.isprintable():
                    raise InputError(f"{kind}: a name must be one line of text; got {shown(name)}")
        for name in self.fewer_seeds:
            if name not in self.variants:
                raise InputError(
                    f"fewer_seeds: {label(name)} is not a variant; choose from {', '.join(self.variants) or 'none'}"
                )
            seeds = [0, 1, 2] if self.seeds is None else self.seeds
            if not {*self.fewer_seeds[name]} & {*seeds}:
                raise InputError(
                    f"fewer_seeds: {label(name)} would run with no seed; give it some of {', '.join(map(str, seeds))}"
                )
            check_seeds(self.fewer_seeds[name])
        return self

    @classmethod
    def read(cls, path: Path | None) -> StudyFile:
        """A comparison, or an experiment to compare methods on; without a file, the default experiment."""
        if path is None:
            return cls()
        values = yamltext.read(path)
        if not _is_marked(values):
            return cls(base=values)
        found = cls(**{str(key): value for key, value in values.items()})
        if isinstance(found.base, str):
            inside = yamltext.read(path.parent / found.base)
            return found.model_copy(update={"base": inside})
        return found


def _in_base(error: UnknownSettingError) -> str:
    """Settings of the experiment belong into `base`."""
    return "" if error.section or error.key not in Experiment.model_fields else f"write it as base.{error.key}"


def is_study(path: Path) -> bool:
    """Whether a file describes a comparison rather than an experiment."""
    return _is_marked(yamltext.read(path))


def _is_marked(values: Mapping[Any, Any]) -> bool:
    """Judged by its keys; a misspelt one also counts where no key belongs to an experiment."""
    if any(mark in values for mark in MARKS):
        return True
    if any(key in Experiment.model_fields for key in values):
        return False
    return any(key in StudyFile.model_fields or get_close_matches(str(key), MARKS, 1, 0.8) for key in values)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse an empty list, and a seed that is given twice."""
    if not seeds or len({*seeds}) < len(seeds):
        raise InputError(f"seeds must be different numbers, at least one; got {shown([*seeds])}")


def comparison(
    given: StudyFile,
    overrides: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    vary: Sequence[str] = (),
    only: Sequence[str] = (),
    at: At | None = None,
    target: float | None = None,
    reference: str | None = None,
    command: str = "",
    metric: str | None = None,
) -> Comparison:
    """The plan; the command's settings override those of the file."""
    assert isinstance(given.base, dict)
    variants = _variants(given, overrides, algorithms, only)
    lists = [values(word) for word in vary]
    _check_free([*overrides, *(f"{key}={each[0]}" for key, each in lists)], given.scenes, variants)
    scenes, asked = _varied(given.scenes or {"": []}, lists, overrides)
    drawn = [*seeds] if seeds is not None else [0, 1, 2] if given.seeds is None else given.seeds
    check_seeds(drawn)
    fewer = {name: [seed for seed in few if seed in drawn] for name, few in given.fewer_seeds.items()}
    cases = cross(given.base, scenes, variants, drawn, fewer if seeds is None else {}, asked)
    usual = given.at or default_at(case.experiment for case in cases)
    scale = at or usual
    judge = _judge(cases, metric or given.metric)
    wanted = next((each for each in (target, given.target) if each is not None), _target(cases, judge.name))
    judge.check_target(wanted)
    measure = Measure(
        at=scale,
        until=(given.until if scale == usual else None) or _limit(cases, scale),
        last=given.last,
        target=wanted,
        reference=reference or _asked_reference(given, variants) or _reference(variants),
        metric=judge.name if metric or given.metric else None,
    )
    return Comparison(given.about or _title(cases), cases, measure, command)


def _variants(
    given: StudyFile, overrides: Sequence[str], algorithms: Sequence[str], only: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    if algorithms and given.variants:
        raise InputError("algorithms: the file has variants already; remove --algorithms, or choose some with --only")
    if twice := next((name for name in algorithms if algorithms.count(name) > 1), None):
        raise InputError(f"algorithms: {label(twice)} is given twice; keep one of the two")
    for name in algorithms:
        find(name, "algorithms")
    if given.variants:
        chosen = chosen_variants(given.variants, only)
        return {name: given.variants[name] for name in chosen}
    if only:
        raise InputError("only: there are no variants to choose from; give --algorithms, or a file with variants")
    if algorithms:
        return {name: [f"algorithm={name}"] for name in algorithms}
    assert isinstance(given.base, dict)
    return {str(Experiment.build(given.base, overrides).algorithm.label): []}


def chosen_variants(variants: Mapping[str, Any], only: Sequence[str]) -> list[str]:
    """The variants that are named, or all."""
    for name in only:
        if name not in variants:
            raise InputError(f"only: {label(name)} is not a variant; choose from {', '.join(map(shown, variants))}")
    return [name for name in variants if not only or name in only]


def _check_free(
    asked: Sequence[str], scenes: Mapping[str, Sequence[str]], variants: Mapping[str, Sequence[str]]
) -> None:
    """Refuse settings for all runs that a scene or a variant also has: its name would no longer say what it is."""
    keys = [key_of(word) for word in asked]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise InputError(f"{label(twice)} is set twice; give it one value, or several with --vary alone")
    for kind, named in (("scene", scenes), ("variant", variants)):
        for name, settings in named.items():
            for key, own in zip(keys, asked, strict=True):
                if any(says(word, key) or says(own, key_of(word)) for word in settings):
                    raise InputError(
                        f"{label(key)} is also set by the {kind} {label(name)}; set it for all runs only if no scene "
                        "and no variant does"
                    )


def _varied(
    scenes: Mapping[str, Sequence[str]], vary: Sequence[tuple[str, list[str]]], overrides: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Every scene with every combination of values: (its settings, what the command asks for in it)."""
    found, asked = {}, {}
    for (scene, around), *chosen in product(scenes.items(), *([(key, v) for v in each] for key, each in vary)):
        told = [f"{key}={value}" for key, value in chosen]
        name = ", ".join(filter(None, [scene, *told]))
        found[name], asked[name] = [*around], [*overrides, *told]
    return found, asked


def values(word: str) -> tuple[str, list[str]]:
    """`local.lr=0.01,0.1` as (key, [values]); a value that holds commas stands in brackets or quotes."""
    key, equals, text = word.partition("=")
    if not equals or not key or not text:
        raise InputError(f"values to try must be KEY=VALUE,VALUE, such as local.lr=0.01,0.1; got {shown(word)}")
    told = yamltext.parse(key, f"[{text}]")
    if not isinstance(told, list) or not told:
        raise InputError(f"{label(key)} must have values with commas between them; got {shown(text)}")
    found = [flow(value) for value in told]
    if len({*found}) < len(found):
        raise InputError(f"{label(key)}: a value is given twice in {shown(text)}; keep one of the two")
    return key, found


def _limit(cases: Sequence[Case], at: At) -> float | None:
    """The virtual clock's end, where runs are compared by the clock and all have the same."""
    limits = {case.experiment.limit_seconds for case in cases}
    return limits.pop() if at == "time" and len(limits) == 1 else None


def _asked_reference(given: StudyFile, variants: Mapping[str, Any]) -> str | None:
    """The file's, unless it is one of its variants that were not chosen: then the usual one."""
    left_out = given.reference in given.variants and given.reference not in variants
    return None if left_out else given.reference


def _reference(variants: Mapping[str, Any]) -> str | None:
    """FedAvg where it takes part, else the first."""
    names = list(variants)
    return next((name for name in names if name.lower() == "fedavg"), names[0]) if len(names) > 1 else None


def _judge(cases: Sequence[Case], asked: str | None) -> Measured:
    """What runs are compared by; refuses experiments that do not all have it."""
    firsts = {declared(case.experiment.metrics)[0]: case for case in cases}
    if asked is None:
        if len(firsts) > 1:
            (one, here), (two, there) = list(firsts.items())[:2]
            raise InputError(
                f"metric: {place_of(here.scene, here.variant)} is judged by {one.name}, but "
                f"{place_of(there.scene, there.variant)} by {two.name}; give all the same first metric, or name one "
                "that all have with --metric"
            )
        return next(iter(firsts))
    name = canonical(asked)
    for case in cases:
        measured = {each.name: each for each in (*declared(case.experiment.metrics), LOSS)}
        if name not in measured:
            raise InputError(
                f"metric: {shown(asked)} is not measured by {place_of(case.scene, case.variant)}; add it to metrics, "
                f"or choose one of {', '.join(measured)}"
            )
    return measured[name]


def _target(cases: Sequence[Case], metric: str) -> float | None:
    """The experiments', where all have the same and mean this metric."""
    goals = {goal(vars(case.experiment), short(case.experiment.metrics[0])) for case in cases}
    name, target = goals.pop()
    return target if not goals and name == metric else None


def _title(cases: Sequence[Case]) -> str:
    variants, datasets, models = (
        _listed(dict.fromkeys(names))
        for names in (
            [case.variant for case in cases],
            [short(case.experiment.dataset.label) for case in cases],
            [short(case.experiment.model.name) for case in cases],
        )
    )
    return f"{variants} on {datasets} with {models}"


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
