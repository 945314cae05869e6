"""Where a setting is that was looked for in the wrong place: `lr` is `local.lr`, and `local.rounds` is `rounds`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedkeel import methods, models
from fedkeel.config.section import RULES, Section
from fedkeel.config.spelling import SHORTHAND, spelled_out
from fedkeel.data import partition
from fedkeel.errors import InputError, UnknownSettingError, did_you_mean, nearest, one_of

SYNONYMS = {
    "learning_rate": "local.lr",
    "client_lr": "local.lr",
    "local_epochs": "local.epochs",
    "n_clients": "clients",
    "num_clients": "clients",
    "clients_per_round": "per_round",
    "n_rounds": "rounds",
    "num_rounds": "rounds",
    "fraction_fit": "participation",
    "random_state": "seed",
    "optimiser": "local.optimizer",
    "data": "dataset",
    "method": "algorithm",
    "strategy": "algorithm",
    "network": "model",
}
"""What other libraries and papers call a setting."""
MOST = 3
"""Suggestions of one kind."""


class Elsewhere:
    """All settings of an experiment by their dotted names, given what it says."""

    def __init__(self, experiment: type[Section], values: Mapping[str, Any]) -> None:
        self._values, self._fields = values, experiment.model_fields
        fixed = {
            name: field.annotation for name, field in experiment.model_fields.items() if name not in ("model", *_OWNERS)
        }
        self._known = [name for name in experiment.model_fields if name != "name"]
        for name, kind in fixed.items():
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                self._known += [f"{name}.{each}" for each in kind.model_fields]
        for section in _OWNERS:
            self._known += [f"{section}.{each}" for each in self._chosen(section)]

    def _chosen(self, section: str) -> Sequence[str]:
        """The settings of the method, partition or model that is chosen."""
        given = spelled_out(section, self._values.get(section, {}))
        if isinstance(given, BaseModel):
            given = given.model_dump()
        word = SHORTHAND[section]
        name = given.get(word, getattr(self._fields[section].default, word)) if isinstance(given, dict) else None
        rules = {side: given.get(side) for side in RULES} if section == "algorithm" and isinstance(given, dict) else {}
        try:
            return _settings(section, str(name), **{k: v for k, v in rules.items() if isinstance(v, str)})
        except InputError:  # told elsewhere
            return []

    def advice(self, error: UnknownSettingError) -> str:
        """Where the setting is, or which one was meant."""
        key, given = error.key, ".".join(filter(None, [error.section, error.key]))
        exact = [each for each in self._known if each.rpartition(".")[2] == key and each != given]
        exact = [] if key in ("kind", "name") else exact  # many sections have them
        if exact or key in SYNONYMS:
            return did_you_mean(sorted(exact, key=lambda each: each.count("."))[:MOST] or [SYNONYMS[key]])
        near = nearest(key, error.names, 0.7) or [each for each in error.names if key in each.split("_")][:MOST]
        if near:
            return did_you_mean([".".join(filter(None, [error.section, each])) for each in near])
        others = {section: _owners_of(section, key) for section in _OWNERS if error.section in ("", section)}
        if others.get(error.section):
            owners = _some(others[error.section], "or")
            return f"choose {error.section}.{SHORTHAND[error.section]} {owners} to use it"
        if error.section and error.section not in _OWNERS:
            others = {section: _owners_of(section, key) for section in _OWNERS}
        told = [f"{section}.{key} of {_some(owners, 'and')}" for section, owners in others.items() if owners]
        if told:
            return did_you_mean(told)
        leaves = {each.rpartition(".")[2]: each for each in reversed(self._known)}
        parts = [each for each in leaves if key in each.split("_")][:MOST]
        return did_you_mean([leaves[each] for each in nearest(key, [*leaves], 0.8) or parts])


_OWNERS = ("partition", "algorithm", "model")


def _settings(section: str, name: str, **rules: str) -> Sequence[str]:
    """Of a method, a partition or a model of the package."""
    match section:
        case "algorithm":
            return [*methods.compose(name, **rules).defaults]
        case "partition":
            return [*partition.options(name)]
    return [*models.options(name)]


def _owners_of(section: str, key: str) -> list[str]:
    """The methods, partitions or models that have a setting."""
    names = {"algorithm": methods.methods, "partition": partition.names, "model": models.names}[section]()
    return [name for name in names if key in _settings(section, name)]


def _some(owners: Sequence[str], last: str) -> str:
    """A few names."""
    return one_of([*owners[:MOST], *(["others"] if len(owners) > MOST else [])], last)
