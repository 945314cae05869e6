"""Hugging Face data sets, and partitions of them that flwr-datasets made; the package `datasets` is an extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files import arrays, images, tables
from fedkeel.data.files.build import OPEN, TEST, VALIDATION, Gathered
from fedkeel.data.files.features import Array
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.table import Column, Table, column_of, listed
from fedkeel.data.files.targets import Targets
from fedkeel.data.files.targets import read as read_targets
from fedkeel.errors import InputError, described, label, words

_SPLITS = {"train": OPEN, "test": TEST, "validation": VALIDATION, "valid": VALIDATION, "val": VALIDATION}
Splits = Sequence[tuple[Any, int, str]]
"""(A data set, what its rows are for, whose they are)."""


def load(name: str) -> Any:
    """A data set that was saved with `save_to_disk`, or one of the hub."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"dataset.name: 'hf:{label(name)}' needs the package datasets; install it with pip install 'fedkeel[hf]'"
        ) from error
    path = Path(name).expanduser()
    try:
        return datasets.load_from_disk(str(path)) if path.is_dir() else datasets.load_dataset(name)
    except Exception as error:  # of many libraries
        where = "as a folder" if path.is_dir() else "as a folder here, nor on the hub"
        raise InputError(
            f"dataset.name: 'hf:{label(name)}' was not found {where} ({words(error)}); give a folder written by "
            "save_to_disk, or a name on the hub"
        ) from error


def splits(dataset: Any, test: Any = None) -> Splits:
    """The parts of a data set, or of a dict of them by split."""
    if isinstance(dataset, Mapping):
        strange = [split for split in dataset if split not in _SPLITS]
        if "train" not in dataset:
            raise InputError(f"dataset must have a split 'train'; it has {listed(dataset)}; hand over one of them")
        found = [(part, _SPLITS[split], "") for split, part in dataset.items() if split not in strange]
    else:
        found = [(dataset, OPEN, "")]
    return [*found, *tested(test)]


def tested(test: Any) -> Splits:
    """Rows to test on, where they are given apart."""
    return [] if test is None else [(test, TEST, "")]


def partitions(given: Any, split: str) -> Splits:
    """One client per data set of a list, or per partition of a `FederatedDataset` or `Partitioner` of flwr-datasets."""
    if hasattr(given, "load_partition"):
        return _loaded(given, split)
    if isinstance(given, Mapping):
        return [(part, OPEN, str(name)) for name, part in given.items()]
    if not isinstance(given, Sequence) or not given:
        raise InputError(f"partitions must be a FederatedDataset or a list of data sets; got {described(given)}")
    return [(part, OPEN, str(number)) for number, part in enumerate(given)]


def _loaded(given: Any, split: str) -> Splits:
    partitioner, where = given, list[str]()
    if hasattr(given, "partitioners"):
        if split not in given.partitioners:
            raise InputError(f"split must be one that is partitioned, {listed(given.partitioners)}; got {split!r}")
        partitioner, where = given.partitioners[split], [split]
    first = given.load_partition(0, *where)  # only then is it known how many there are, and what they are called
    others = (given.load_partition(number, *where) for number in range(1, partitioner.num_partitions))
    names = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    return [(part, OPEN, str(names.get(number, number))) for number, part in enumerate((first, *others))]


def gather(parts: Splits, settings: FileSettings, name: str) -> Gathered:
    """Rows of all parts; a single column of arrays or images gives the samples, otherwise a table does."""
    for part, _, _ in parts:
        if not hasattr(part, "column_names") or not hasattr(part, "features") or not hasattr(part, "__len__"):
            raise InputError(
                f"dataset must be a Hugging Face Dataset with a length; got {described(part)}; load it without "
                "streaming"
            )
    if not settings.target:
        raise InputError(f"dataset.target must name the column to predict; choose {listed(parts[0][0].column_names)}")
    part = np.repeat([which for _, which, _ in parts], [len(each) for each, _, _ in parts]).astype(np.int8)
    by_part = any(who for _, _, who in parts)
    whose = [who for each, _, who in parts for _ in range(len(each))] if by_part else None
    wanted = _samples(parts[0][0], settings)
    if wanted is None:
        columns = {c: _column(parts, c) for c in parts[0][0].column_names if c not in settings.ignore}
        used = _with_classes(parts, settings).model_copy(update={"ignore": ()})
        return tables.gather(Table(columns, name), used, part, whose, name)
    x = _stacked(parts, wanted, settings)
    y, classes = _targets(parts, settings, name)
    if whose is None and settings.client is not None:
        whose = [word or "" for word in _column(parts, _present(parts, settings.client, "client")).names()]
    if x.dtype == np.uint8 and x.ndim == 4:
        return Gathered(Array(x), y, part, whose, classes, name)
    return arrays.from_array(x, y, part, whose, classes, settings, name)


def _samples(part: Any, settings: FileSettings) -> str | None:
    """The column of arrays or images that holds the samples, if there is one."""
    roles = {*(settings.target or ()), settings.client, *settings.ignore}
    names = settings.features or [name for name in part.column_names if name not in roles]
    for name in names:
        _present([(part, OPEN, "")], name, "features")
    wide = [name for name in names if _is_wide(part.features[name])]
    if wide and len(names) > 1:
        raise InputError(
            f"dataset.features must be a single column where one holds arrays or images, as {wide[0]!r} does; got "
            f"{len(names)} columns"
        )
    return wide[0] if wide else None


def _is_wide(feature: Any) -> bool:
    """Images, lists and arrays."""
    return type(feature).__name__ in ("Image", "Array2D", "Array3D", "Array4D", "Sequence", "List", "LargeList", "list")


def _present(parts: Splits, name: str, field: str) -> str:
    for part, _, _ in parts:
        if name not in part.column_names:
            raise InputError(
                f"dataset.{field}: the data set has no column {name!r}; choose {listed(part.column_names)}"
            )
    return name


def _values(parts: Splits, name: str) -> list[Any]:
    return [value for part, _, _ in parts for value in part.with_format(None)[name]]


def _column(parts: Splits, name: str) -> Column:
    """A column of all parts; class labels by their names."""
    values, names = _values(parts, _present(parts, name, "name")), _class_names(parts, name)
    if names is None:
        return column_of(name, values)
    return column_of(name, [None if value is None or value < 0 else names[value] for value in values])


def _class_names(parts: Splits, name: str) -> tuple[str, ...] | None:
    feature = parts[0][0].features[name]
    return tuple(feature.names) if type(feature).__name__ == "ClassLabel" else None


def _targets(parts: Splits, settings: FileSettings, name: str) -> Targets:
    assert settings.target
    columns = {each: _column(parts, _present(parts, each, "target")) for each in settings.target}
    for each, column in columns.items():
        if column.missing.any():
            raise InputError(f"dataset.target: {column.missing.sum()} rows have no {each!r}; leave them out")
    return read_targets(Table(columns, name), _with_classes(parts, settings))


def _with_classes(parts: Splits, settings: FileSettings) -> FileSettings:
    """With the classes of a target that is a `ClassLabel`, in their order, unless others are asked for."""
    names = settings.target or ()
    if len(names) != 1 or settings.classes is not None or names[0] not in parts[0][0].column_names:
        return settings
    return settings.model_copy(update={"classes": _class_names(parts, names[0])})


def _stacked(parts: Splits, name: str, settings: FileSettings) -> NDArray[Any]:
    """Samples of one shape, as an array."""
    values = _values(parts, name)
    numbered = [f"row {row}" for row in range(len(values))]
    if any(value is None for value in values):
        raise InputError(f"dataset.features: some rows have no {name!r}; leave them out")
    if type(parts[0][0].features[name]).__name__ == "Image":
        colour = images.colour_of(values[0], settings)
        pixels = [images.pixels(value, colour, settings.resize) for value in values]
        images.same_size(pixels, numbered)
        return np.stack(pixels)
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise InputError(
            f"dataset.features: the lists of column {name!r} must all have one length ({words(error)}); pad or cut them"
        ) from error
