"""Runs that differ in their seed alone belong together; a group is named after what it has differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from fedkeel.config.spelling import SHORTHAND, dotted, flow
from fedkeel.config.usercode import short
from fedkeel.errors import label
from fedkeel.record.runs import RunRecord
from fedkeel.study.adhoc import ASIDE, differing

_NAMES = {f"{section}.{key}" for section, key in SHORTHAND.items()}
"""Settings whose value says what they are: `fedavg`, not `algorithm.name fedavg`."""
LONGEST = 90
"""Letters of a name."""
Settings = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Runs with the same settings."""

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def unit(self) -> str:
        """What the runs are: `seeds`, or `runs` if two have the same seed."""
        seeds = {flow(run.experiment.get("seed")) for run in self.runs}
        return "seeds" if len(seeds) == len(self.runs) else "runs"


def groups(runs: Sequence[RunRecord], separate: bool = False) -> list[Group]:
    """Seeds together, in the order in which the runs are given; with `separate`, every run for itself."""
    distinct = list({run.path.resolve(): run for run in runs}.values())
    aside = ASIDE - {"seed"} if separate else ASIDE
    found: list[tuple[Settings, list[RunRecord]]] = []
    for run in distinct:
        settings = dotted(run.experiment, aside)
        same = next((some for other, some in found if other == settings and not separate), None)
        if same is None:
            found.append((settings, [run]))
        else:
            same.append(run)
    names = [shorten(name, LONGEST, placeholder=" …") for name in _named(found)]
    names = _unique(names, [some for _, some in found])
    return [Group(name, tuple(some)) for name, (_, some) in zip(names, found, strict=True)]


def titles(runs: Sequence[RunRecord]) -> list[str]:
    """Of panels that show one run each: the label of the run, or what differs where two have the same label."""
    words = [run.label for run in runs]
    if len(set(words)) < len(words):
        names = {group.runs[0].path.resolve(): group.name for group in groups(runs, separate=True)}
        words = [names[run.path.resolve()] for run in runs]
    return [shorten(each, 50, placeholder=" …") for each in words]


def _named(found: Sequence[tuple[Settings, Sequence[RunRecord]]]) -> list[str]:
    """The name that the user gave to the runs of one group only, or what differs, or what there is to say."""
    keys = differing([settings for settings, _ in found])
    given = [_given(some) for _, some in found]
    return [
        name if name and given.count(name) == 1 else _words(settings, keys) or _fallback(some)
        for name, (settings, some) in zip(given, found, strict=True)
    ]


def _given(runs: Sequence[RunRecord]) -> str:
    name = runs[0].experiment.get("name")
    same = all(run.experiment.get("name") == name for run in runs)
    return label(name) if same and isinstance(name, str) else ""


def _words(settings: Settings, keys: Iterable[str]) -> str:
    """Names first, as in `fedavg, dirichlet, lr 0.1`."""
    known = [key for key in keys if key in settings and settings[key] is not None]
    last = Counter(key.rpartition(".")[2] for key in known)
    values = [short(str(settings[key])) for key in known if key in _NAMES]
    for key in known:
        if key not in _NAMES:
            brief = key.rpartition(".")[2]
            values.append(f"{brief if last[brief] == 1 else key} {flow(settings[key])}")
    return ", ".join(values)


def _fallback(runs: Sequence[RunRecord]) -> str:
    """Nothing differs: the folder of a single run, the method of several."""
    if len(runs) == 1:
        return label(runs[0].path.resolve().name)
    with runs[0].told_if_damaged("experiment.yaml"):
        return label(short(str(runs[0].experiment["algorithm"]["name"])))


def _unique(names: Sequence[str], runs: Sequence[Sequence[RunRecord]]) -> list[str]:
    """Where two groups have the same name, with their folders."""
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{name} ({label(some[0].path.resolve().name)})"
        for name, some in zip(names, runs, strict=True)
    ]
