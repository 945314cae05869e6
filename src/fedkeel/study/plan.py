"""A plan of runs: every variant in every scene with every seed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any, Literal

from pydantic import ConfigDict

from fedkeel.config import yamltext
from fedkeel.config.experiment import Experiment
from fedkeel.config.section import RULES
from fedkeel.errors import InputError, label

At = Literal["time", "rounds", "uploads", "bytes"]
"""What runs have used up when they are compared: virtual seconds, rounds, uploads, or bytes up and down."""
LONGEST_NAME = 80
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Measure:
    """How the runs of a plan are compared."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    at: At = "rounds"
    until: float | None = None
    """The place on that scale; by default the end of the shortest run of a scene."""
    last: int = 1
    """The number of last evaluations up to there whose mean is the final result."""
    target: float | None = None
    """A value of the metric; the table also says what it took to reach it."""
    reference: str | None = None
    """The variant that the others are compared with, seed by seed."""
    metric: str | None = None
    """What runs are compared by; by default the first metric of their experiment."""
    tuning: bool = False
    """Whether settings are chosen: then the validation set decides, where runs have one."""

    def __post_init__(self) -> None:
        if self.last < 1:
            raise InputError(f"last must be at least 1; got {self.last}")
        if self.until is not None and not self.until > 0:
            raise InputError(f"until must be greater than 0; got {self.until:g}")
        if self.target is not None and not isfinite(self.target):
            raise InputError(f"target must be a finite number; got {self.target:g}")


@dataclass(frozen=True)
class Case:
    """One run of a plan."""

    name: str
    """The name of its folder, the same whenever the plan is made again."""
    scene: str
    """The circumstances; empty where a plan has only one scene."""
    variant: str
    """What is compared: a method, or a setting of one."""
    seed: int
    experiment: Experiment


@dataclass(frozen=True)
class Comparison:
    """A plan of runs, and how they are compared."""

    title: str
    cases: tuple[Case, ...]
    measure: Measure
    command: str = ""
    """The command that repeats it."""

    def __post_init__(self) -> None:
        if not self.cases:
            raise InputError("comparison: it has no runs; give at least one variant and one seed")
        check_count(len(self.cases))
        names = Counter(case.name.lower() for case in self.cases)
        twice = next((case for case in self.cases if names[case.name.lower()] > 1), None)
        if twice is not None:
            raise InputError(
                f"comparison: two runs are called {label(twice.name)} (variant {label(twice.variant)}, seed "
                f"{twice.seed}); give one of them another name"
            )
        reference = self.measure.reference
        if reference is not None and reference not in self.variants:
            raise InputError(
                f"reference: {label(reference)} is not a variant; choose one of {', '.join(self.variants)}"
            )

    @property
    def scenes(self) -> list[str]:
        """The scenes, in order."""
        return list(dict.fromkeys(case.scene for case in self.cases))

    @property
    def variants(self) -> list[str]:
        """The variants, in order."""
        return list(dict.fromkeys(case.variant for case in self.cases))

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return sorted({case.seed for case in self.cases})


def check_count(runs: int) -> None:
    """Refuse more runs than anybody would run."""
    if runs > MOST_RUNS:
        raise InputError(f"comparison: it must have at most {MOST_RUNS:,} runs; got {runs:,}")


def cross(
    base: Mapping[str, Any],
    scenes: Mapping[str, Sequence[str]],
    variants: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    only: Mapping[str, Sequence[int]] | None = None,
    asked: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Case, ...]:
    """Every variant in every scene with every seed; `only` has the seeds of variants that run with fewer.

    Scenes and variants are lists of settings as on the command line. They override the base, first those of the scene,
    then those of the variant. Settings that are `asked` for all runs of a scene go around them: sections come first, so
    that a variant may change a setting in them, and single settings come last.
    """
    check_count(len(scenes) * len(variants) * len(seeds))
    cases = []
    for scene, around in scenes.items():
        for variant, settings in variants.items():
            for seed in (only or {}).get(variant, seeds):
                whole = (asked or {}).get(scene, ())
                layers = [
                    [word for word in whole if "." not in key_of(word)],
                    around,
                    settings,
                    [word for word in whole if "." in key_of(word)],
                ]
                experiment = _described(base, layers, f"seed={seed}", place_of(scene, variant))
                cases.append(Case(case_name(scene, variant, seed), scene, variant, seed, experiment))
    return tuple(cases)


def _described(base: Mapping[str, Any], layers: Sequence[Sequence[str]], seed: str, where: str) -> Experiment:
    """Layers of settings; later ones replace earlier ones."""
    try:
        settings: list[str] = []
        for layer in layers:
            settings = [*(word for word in settings if not _replaced(word, layer)), *layer]
        given = next((word for word in settings if key_of(word) == "seed"), None)
        if given is not None:
            raise InputError(f"{given} cannot be set here; use --seeds, or seeds in the file")
        return Experiment.build(base, [*settings, seed])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _replaced(word: str, layer: Sequence[str]) -> bool:
    """Whether a layer sets the same; a section that would silently undo a setting is refused."""
    key = key_of(word)
    if any(says(other, key) for other in layer):
        return True
    section = next((other for other in map(key_of, layer) if key.startswith(f"{other}.")), None)
    if section is not None:
        raise InputError(
            f"{label(section)} would undo {label(word)}, which a scene or the command sets; set {label(key)} beside "
            f"{label(section)}, in the same place"
        )
    return False


def key_of(word: str) -> str:
    """The dotted key of a setting; `client` and `server` are the algorithm's."""
    key = word.partition("=")[0]
    return f"algorithm.{key}" if key in RULES else key


def says(word: str, asked: str) -> bool:
    """Whether a setting sets the key `asked`; a section in braces sets the keys that it holds."""
    key = key_of(word)
    if key == asked:
        return True
    if not asked.startswith(f"{key}."):
        return False
    value = yamltext.parse(key, word.partition("=")[2])
    for part in asked.removeprefix(f"{key}.").split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def place_of(scene: str, variant: str) -> str:
    """A cell of a comparison, in words."""
    return label(f"{variant} in {scene}" if scene else variant)


def default_at(experiments: Iterable[Experiment]) -> At:
    """Equal virtual time as soon as one of the methods is asynchronous, else equal rounds."""
    return "time" if any(each.pace != "barrier" for each in experiments) else "rounds"


def goal(settings: Mapping[str, Any], first: str) -> tuple[str, float | None]:
    """(The metric, its target) that an experiment aims at; targets of earlier versions are accuracies."""
    short = settings.get("target_accuracy")
    target = settings.get("target") if short is None else short
    name = settings.get("target_metric") or (first if short is None else "accuracy")
    return str(name), None if target is None else float(target)


def case_name(scene: str, variant: str, seed: int) -> str:
    """A folder's name; long or odd names are shortened and told apart by a digest."""
    words = "-".join(filter(None, (scene, variant)))
    plain = re.sub(r"[^A-Za-z0-9.%+=_]+", "-", words).strip("-.")
    if plain != words.replace(", ", "-").replace(" ", "-") or len(plain) > LONGEST_NAME:
        digest = sha256(f"{scene}\n{variant}".encode()).hexdigest()[:6]
        plain = f"{plain[:LONGEST_NAME].strip('-.')}-{digest}".strip("-.")
    return f"{plain}-seed{seed}"
