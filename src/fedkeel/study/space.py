"""What a search tries: settings with their values or bounds, and trials of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from fedkeel.config import yamltext
from fedkeel.config.spelling import flow
from fedkeel.errors import InputError, shown
from fedkeel.record.measured import ACCURACY, Measured
from fedkeel.study.files import StudyFile, check_seeds, comparison, values
from fedkeel.study.plan import At, Case, Comparison, Measure, check_count, cross, key_of

SEARCH, TRIALS = "search.json", "trials.jsonl"
LOGARITHMIC = 10
"""Bounds that differ by such a factor or more are searched on a logarithmic scale."""


@dataclass(frozen=True)
class Bounds:
    """The numbers between two bounds."""

    low: float
    high: float
    whole: bool = False
    """Whether the setting takes whole numbers only."""

    @classmethod
    def read(cls, word: str) -> tuple[str, Bounds]:
        """`local.lr=0.001..1` as (key, bounds)."""
        key, _, text = word.partition("=")
        low, dots, high = text.partition("..")
        ends = [yamltext.parse(key, end) for end in (low, high)] if key and dots else []
        if not ends or not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            raise InputError(f"range must be KEY=LOW..HIGH, such as local.lr=0.001..1; got {shown(word)}")
        if not (isfinite(ends[0]) and isfinite(ends[1]) and ends[0] < ends[1]):
            raise InputError(f"range must have a lower bound below the upper one; got {shown(word)}")
        return key, cls(*ends)

    @property
    def logarithmic(self) -> bool:
        """Whether the ratio of numbers counts, not their difference."""
        return self.low > 0 and self.high >= LOGARITHMIC * self.low

    def distribution(self) -> Any:
        """As Optuna says it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.logarithmic)
        return FloatDistribution(self.low, self.high, log=self.logarithmic)


@dataclass(frozen=True)
class Trial:
    """One setting that was tried."""

    number: int
    settings: dict[str, Any]
    value: float | None
    """Of the metric, the mean over seeds where trials are compared, or where it was stopped. If a run failed: 0 for a
    share that should be high, such as accuracy; else that of the worst trial before it, or none."""
    state: str
    """`complete`, `pruned` or `failed`."""
    steps: dict[int, float] = field(default_factory=dict)
    """The mean of the metric by round, or by place on the virtual clock."""
    why: str = ""
    """What was wrong, if it failed."""
    repeats: int | None = None
    """The number of an earlier trial with the same settings, whose result this is."""
    metric: Measured = ACCURACY
    """What the value is of."""
    validated: bool = False
    """Whether it was measured on a validation set."""

    @property
    def score(self) -> float | None:
        """What the search makes as high as it can."""
        return None if self.value is None else self.metric.sign * self.value

    @property
    def words(self) -> list[str]:
        """The settings as they are tried; numbers have four digits."""
        return [f"{key}={flow(_short(value))}" for key, value in self.settings.items()]

    @property
    def variant(self) -> str:
        """The same as a name."""
        return ", ".join(self.words)


@dataclass(frozen=True)
class Search:
    """What is searched, and on what."""

    given: StudyFile
    overrides: Sequence[str]
    space: Mapping[str, list[Any] | Bounds]
    seeds: Sequence[int]
    trials: int
    measure: Measure = field(default_factory=Measure)
    """How trials are compared; it does not depend on the trials made so far."""
    command: str = ""

    @classmethod
    def of(
        cls,
        given: StudyFile,
        overrides: Sequence[str],
        grid: Sequence[str],
        ranges: Sequence[str],
        seeds: Sequence[int],
        trials: int,
        at: At | None = None,
        command: str = "",
        metric: str | None = None,
    ) -> Search:
        """As a command says it."""
        check_installed()
        if given.variants or given.scenes:
            raise InputError("search: the file has variants or scenes; give an experiment, or use fedkeel compare")
        check_seeds(seeds)
        lists = [(key, [yamltext.parse(key, text) for text in texts]) for key, texts in map(values, grid)]
        pairs: list[tuple[str, list[Any] | Bounds]] = [*lists, *map(Bounds.read, ranges)]
        space = dict(pairs)
        if not space:
            raise InputError("search: there is nothing to search; give --range KEY=LOW..HIGH or --grid KEY=V,V")
        if len(space) < len(pairs):
            raise InputError("search: a setting is given twice; keep one of the two")
        check_count(trials * len(seeds))
        return cls(given, overrides, space, seeds, trials, command=command)._fitted()._measured(at, metric)

    @property
    def first(self) -> Trial:
        """The first values of all settings, as an example."""
        return Trial(0, {key: _ends(each)[0] for key, each in self.space.items()}, 0.0, "")

    def _fitted(self) -> Search:
        """Whole bounds of a setting that takes only whole numbers are searched in whole numbers."""
        space = {key: self._fit(key, each) if isinstance(each, Bounds) else each for key, each in self.space.items()}
        return replace(self, space=space)

    def _fit(self, key: str, bounds: Bounds) -> Bounds:
        if not (isinstance(bounds.low, int) and isinstance(bounds.high, int)):
            return bounds
        others = [word for word in self.first.words if key_of(word) != key]
        words = [*others, f"{key}={flow(bounds.low + 0.5)}"]  # with all digits
        try:
            cross(self.base, {"": []}, {"": words}, self.seeds[:1], asked={"": self.overrides})
        except InputError:
            return replace(bounds, whole=True)
        return bounds

    def _measured(self, at: At | None, metric: str | None) -> Search:
        """Compared like a sweep over all values of each setting, with the others at their first values."""
        tried = [self._beside_first(key, value) for key, each in self.space.items() for value in _ends(each)]
        variants = {trial.variant: trial.words for trial in tried}
        wide = self.given.model_copy(update={"variants": variants, "reference": None})
        plan = comparison(wide, self.overrides, seeds=self.seeds, at=at, metric=metric)
        return replace(self, measure=replace(plan.measure, reference=None, tuning=True))

    def _beside_first(self, key: str, value: Any) -> Trial:
        return Trial(0, {**self.first.settings, key: value}, 0.0, "")

    @property
    def prunes(self) -> bool:
        """Whether trials may be stopped early: only if the place at which they are compared is known beforehand."""
        return self.measure.at == "rounds" or (self.measure.at == "time" and self.measure.until is not None)

    @property
    def base(self) -> Mapping[str, Any]:
        """The experiment's settings."""
        assert isinstance(self.given.base, dict)
        return self.given.base

    def cases(self, trial: Trial) -> tuple[Case, ...]:
        """The runs of a trial."""
        made = cross(self.base, {"": []}, {trial.variant: trial.words}, self.seeds, asked={"": self.overrides})
        return tuple(
            Case(f"trial{trial.number:04d}-seed{each.seed}", "", each.variant, each.seed, each.experiment)
            for each in made
        )

    def possible(self, trial: Trial) -> tuple[Case, ...]:
        """The runs of a trial; none where its settings contradict each other."""
        try:
            return self.cases(trial)
        except InputError:
            return ()

    def plan(self, trials: Sequence[Trial]) -> Comparison:
        """All trials that could be run, as variants of a comparison; repeated settings count once."""
        first = {trial.variant: trial for trial in reversed(trials)}
        cases = [case for trial in trials if first[trial.variant] is trial for case in self.possible(trial)]
        title = self.given.about or f"Search over {' and '.join(self.space)}"
        return Comparison(title, tuple(cases), self.measure, self.command)

    def told(self) -> dict[str, Any]:
        """What makes it this search and no other."""
        space = {key: vars(each) if isinstance(each, Bounds) else each for key, each in self.space.items()}
        experiment = self.cases(self.first)[0].experiment.model_dump(mode="json", exclude={"executor"})
        compared = {"at": self.measure.at, "metric": self.measure.metric}
        return {"space": space, "seeds": [*self.seeds], "experiment": experiment, **compared}


def check_installed() -> None:
    """Refuse a search where Optuna is missing."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise InputError(
            "search: it needs the package optuna; install it with pip install 'fedkeel[optuna]', or use --grid alone"
        ) from None


def distribution(values: list[Any] | Bounds) -> Any:
    """As Optuna says it."""
    from optuna.distributions import CategoricalDistribution

    return values.distribution() if isinstance(values, Bounds) else CategoricalDistribution(values)


def _ends(values: list[Any] | Bounds) -> list[Any]:
    """All values of a list, or both bounds."""
    return values if isinstance(values, list) else [values.low, values.high]


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
