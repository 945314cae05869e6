"""Data at the server: no rows of a site, only samples of zeros in their shape, and a test set where there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel.config.experiment import Experiment
from fedkeel.data.alone import owned
from fedkeel.data.datasets import Examples
from fedkeel.data.federated import FederatedData, examples
from fedkeel.errors import FedkeelError, InputError, described, shown
from fedkeel.runner.prepare import federate

MOST = 64
"""Samples of zeros."""
LONGEST = 10**7
"""Numbers of a sample, classes, words."""
ALIKE = (
    "x", "y", "classes", "vocabulary", "class_names", "feature_names", "augment", "resize", "own", "own_tests",
    "validates",
)  # fmt: skip
"""What all sites must have in common."""


def check_told(told: Mapping[str, Any]) -> None:
    """Refuse facts that no site can have."""
    if missing := [name for name in ALIKE if name not in told]:
        raise FedkeelError(f"it does not tell {missing[0]}; install the same fedkeel there")
    whole = {"samples": (1, 10**12), "tests": (0, 10**12), "validation": (0, 10**12), "classes": (0, LONGEST)}
    for name, (least, most) in whole.items():
        _check_whole(name, told.get(name), least, most)
    for name in ("vocabulary", "resize"):
        if told.get(name) is not None:
            _check_whole(name, told[name], 0, LONGEST)
    for name in ("x", "y"):
        _check_kind(name, told.get(name))
    for name in ("class_names", "feature_names"):
        names = told.get(name)
        if names is not None and not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
            raise FedkeelError(f"{name} must be words; it told {shown(names)}")
    for name in ("augment", "own", "own_tests", "validates"):
        if type(told[name]) is not bool:
            raise FedkeelError(f"{name} must be true or false; it told {shown(told[name])}")
    labels = told.get("labels")
    if labels is not None:
        if not isinstance(labels, list) or len(labels) != told["classes"]:
            raise FedkeelError(f"labels must be a count for each of {told['classes']} classes; it told {shown(labels)}")
        for each in labels:
            _check_whole("labels", each, 0, told["samples"])


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise FedkeelError(f"{name} must be a whole number from {least} to {most:,}; it told {shown(value)}")


def _check_kind(name: str, told: object) -> None:
    """The shape and type of a sample."""
    if not isinstance(told, list) or len(told) != 2 or not isinstance(told[0], list) or not isinstance(told[1], str):
        raise FedkeelError(f"{name} must be a shape and a type; it told {shown(told)}")
    for size in told[0]:
        _check_whole(f"a size of {name}", size, 0, LONGEST)
    if len(told[0]) > 8 or prod(told[0]) > LONGEST:
        raise FedkeelError(f"{name} must have at most {LONGEST:,} numbers; it told {shown(told[0])}")
    _dtype(told[1])


def usual(told: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What most sites told; of the first one, where there are as many others."""
    kinds = [repr([each.get(name) for name in ALIKE]) for each in told]
    return told[kinds.index(Counter(kinds).most_common(1)[0][0])]


def stand_in(experiment: Experiment, sites: Sequence[str], told: Mapping[str, Any]) -> FederatedData:
    """Data like that of the site that told this, without its rows; all of it belongs to the first client."""
    batch = experiment.local.batch_size
    count = min(MOST, batch) if isinstance(batch, int) and not experiment.local.drop_last else 4
    count = batch if isinstance(batch, int) and experiment.local.drop_last else count
    (x_shape, x_type), (y_shape, y_type) = told["x"], told["y"]
    x = torch.zeros(count, *x_shape, dtype=_dtype(x_type))
    y = torch.zeros(count, *y_shape, dtype=_dtype(y_type))
    rows = owned(np.arange(count), 0, len(sites))
    nothing = owned(np.zeros(0, np.int64), 0, len(sites))
    return FederatedData(
        train=Examples(x, y),
        test=Examples(x[:2], y[:2]),
        assignment=rows,
        classes=told["classes"],
        vocabulary=told["vocabulary"],
        name=experiment.dataset.label,
        augment=told["augment"],
        resize=told["resize"],
        test_rows=nothing,
        client_names=tuple(sites),
        class_names=_names(told["class_names"]),
        feature_names=_names(told["feature_names"]),
        site=0,
    )


def with_test(data: FederatedData, experiment: Experiment, own: bool) -> FederatedData:
    """The same with the test set of the server, where there is one: that of `data.py`, or of the common data set."""
    found = _own_test(experiment)
    if found is None and not own:
        common = federate(experiment)
        found = common.test if common.test_rows is None else None
    return data if found is None else replace(data, test=found, test_rows=None)


def no_counts(experiment: Experiment, data: FederatedData) -> NDArray[np.int64] | None:
    """Stands for the labels of all sites, where the loss needs them: the server trains on zeros."""
    return np.ones(data.classes, np.int64) if experiment.loss.class_weights == "balanced" else None


def _own_test(experiment: Experiment) -> Examples | None:
    """What the function `test` of `data.py` returns."""
    made = getattr(import_module("data"), "test", None)
    if made is None:
        return None
    given = made()
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(f"data.py: test must return (x, y) or None; got {described(given)}")
    return examples(given[0], given[1], experiment.dataset.vocabulary)


def check_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse a site whose data has another shape than that of the others."""
    for name in ALIKE:
        if one.get(name) != other.get(name):
            told = f"{shown(other.get(name))}, not {shown(one.get(name))}"
            raise FedkeelError(f"its data has other {name} than that of the first site: {told}")


def _names(told: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if told is None else tuple(map(str, told))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise FedkeelError(f"a site has data of an unknown type, {shown(name)}")
    return found
