"""Scales a paper's setting down, by a rule for each data set and model, and says how in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import ceil
from pathlib import Path
from typing import Any, Literal

from fedkeel.config import yamltext
from fedkeel.config.section import Count, Section, Size, make
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.errors import InputError
from fedkeel.study.papers.catalogue import Settings

Scale = Literal["tiny", "small", "full"]
_EXECUTOR = {"kind": "serial", "stack": 0, "native": False, "channels_last": False}
"""The executor of the smallest runs; measuring which one is best would take longer than they do."""
_BUFFERS = ("algorithm.buffer_size", "algorithm.minimum")
"""Settings for how many updates a server waits; it would wait for ever if a run had fewer."""
_FEWEST = 4
"""The fewest clients that are left."""
_BACKSTOP = 2
"""Where virtual time ends runs, they may have this many times as many rounds as any method makes in that time."""


class Rule(Section):
    """How far a setting is scaled down."""

    milliseconds: Size
    """The time to train on one sample on one core."""
    rounds: Count = 1_000_000
    """The largest number of rounds."""
    train: Count | None = None
    test: Count | None = None
    evaluate_every: Count = 1
    seeds: Count | None = None


class Full(Section):
    """The paper's setting."""

    seeds: Count


class Tiny(Full):
    """As little as works; see the file."""

    rounds: Count
    epochs: Count
    samples: Count
    test: Count
    divide_share: Count
    divide_all: Count
    divide_count: Count


class Small(Full):
    """An honest experiment for two cores."""

    hours: Size
    rules: dict[str, Rule]


class Scales(Section):
    """All scales."""

    full: Full
    tiny: Tiny
    small: Small


@dataclass(frozen=True)
class Scaled:
    """A setting at a scale."""

    settings: Settings
    seeds: int
    smaller: tuple[str, ...]
    """What was scaled down, in words."""
    seconds: float | None = None
    """Estimated seconds of one run on one core, where there is a rule for it."""


@cache
def scales() -> Scales:
    """The scales as the file has them."""
    return make(Scales, yamltext.read(Path(str(resources.files(__package__) / "scales.yaml"))), "scales")


def scaled(settings: Settings, scale: Scale, keep: Sequence[str] = ()) -> Scaled:
    """The setting at that scale; settings in `keep` stay as the paper has them."""
    match scale:
        case "full":
            return Scaled(settings, scales().full.seeds, (), _seconds(settings))
        case "small":
            changed, seeds = _small(settings)
            return Scaled(changed, seeds, _told(settings, changed), _seconds(changed))
        case "tiny":
            changed = _tiny(settings, keep)
            return Scaled(changed, scales().tiny.seeds, _told(settings, changed))


def _rule(settings: Settings) -> Rule:
    name = f"{settings['dataset.name']}+{settings['model.name']}"
    if name not in scales().small.rules:
        raise InputError(f"scale: small has no rule for {name}; choose tiny or full")
    return scales().small.rules[name]


def _small(settings: Settings) -> tuple[dict[str, Any], int]:
    rule = _rule(settings)
    changed = {**settings, "rounds": min(settings["rounds"], rule.rounds), "evaluate_every": rule.evaluate_every}
    if "limit_seconds" in settings:  # as many rounds as the rule says for the fastest method; others make fewer
        changed |= {"rounds": _BACKSTOP * rule.rounds, "evaluate_every": 1}
        changed["limit_seconds"] = settings["limit_seconds"] * changed["rounds"] / settings["rounds"]
    limits = {"dataset.train_limit": rule.train, "dataset.test_limit": rule.test}
    return {**changed, **{key: value for key, value in limits.items() if value}}, rule.seeds or scales().small.seeds


def _tiny(settings: Settings, keep: Sequence[str]) -> dict[str, Any]:
    tiny = scales().tiny
    epochs = settings["local.epochs"] if "local.epochs" in keep else min(tiny.epochs, settings["local.epochs"])
    clients = _clients(settings)
    changed = {
        **settings,
        **clients,
        "rounds": min(tiny.rounds, settings["rounds"]),
        "evaluate_every": tiny.rounds,
        "local.epochs": epochs,
        "dataset.train_limit": clients["clients"] * _samples(settings),
        "dataset.test_limit": tiny.test,
        "executor": _EXECUTOR,
    }
    changed.pop("limit_seconds", None)  # two rounds, however long they take
    if "fleet.tau_max" in settings:
        changed["fleet.tau_max"] = min(settings["fleet.tau_max"], epochs - 1)
    return {**changed, **{key: clients["per_round"] for key in _BUFFERS if key in settings}}


def _clients(settings: Settings) -> dict[str, int]:
    tiny = scales().tiny
    if "per_round" in settings:
        each = (settings[key] // tiny.divide_count for key in ("clients", "per_round"))
        return dict(zip(("clients", "per_round"), (max(1, count) for count in each), strict=True))
    divisor = tiny.divide_all if settings.get("participation", 1.0) == 1.0 else tiny.divide_share
    return {"clients": max(_FEWEST, settings["clients"] // divisor)}


def _samples(settings: Settings) -> int:
    """Samples per client; where a client holds a number of classes, there must be enough of each."""
    classes: int = settings.get("partition.classes", 0)
    return max(scales().tiny.samples, ceil(1.5 * classes))


def _told(before: Settings, after: Mapping[str, Any]) -> tuple[str, ...]:
    """The differences, in words."""
    words = {"rounds": "rounds", "clients": "clients", "per_round": "clients per round", "local.epochs": "local epochs"}
    if "limit_seconds" in after:  # and rounds are no more than a backstop
        words = {"limit_seconds": "virtual seconds", **words}
        del words["rounds"]
    changed = {key: what for key, what in words.items() if before.get(key) != after.get(key)}
    told = [f"{before[key]:g} -> {after[key]:g} {what}" for key, what in changed.items()]
    sizes = ENTRIES[before["dataset.name"]].sizes
    for which, size in zip(("train", "test"), sizes, strict=True):
        limit = after.get(f"dataset.{which}_limit")
        if limit is not None and limit < size:
            told.append(f"{limit:,} of {size:,} {'training' if which == 'train' else 'test'} samples")
    return tuple(told)


def _seconds(settings: Settings) -> float:
    """Seconds of training and tests; to test a sample takes a third of what training on it does."""
    sizes = ENTRIES[settings["dataset.name"]].sizes
    train, test = (settings.get(f"dataset.{w}_limit") or size for w, size in zip(("train", "test"), sizes, strict=True))
    clients = settings["clients"]
    part = settings["per_round"] / clients if "per_round" in settings else settings.get("participation", 1.0)
    rounds = settings["rounds"] / (_BACKSTOP if "limit_seconds" in settings else 1)
    trained = rounds * part * train * settings["local.epochs"]
    tested = ceil(rounds / settings.get("evaluate_every", 1)) * test / 3
    return float((trained + tested) * _rule(settings).milliseconds / 1000)
