"""Targets of a table: classes by name, numbers, or several columns of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files.clients import natural
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.table import Column, Table, listed
from fedkeel.errors import InputError, shown

Targets = tuple[NDArray[Any], tuple[str, ...] | None]
"""(Whole numbers or float32 [rows] or [rows, columns], the names of the classes)."""
MOST_CLASSES = 1000


def read(table: Table, settings: FileSettings) -> Targets:
    """The targets of all rows, none of which is missing."""
    names = settings.target
    assert names
    columns = [table.columns[name] for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.kind in ("date", "other"):
            raise InputError(
                f"dataset.target: column {name!r} must hold numbers or names of classes; got {_some(column)}"
            )
    if len(columns) > 1:
        return _several(names, columns, settings)
    (name,), (column,) = names, columns
    whole = column.numbers is not None and not np.mod(column.numbers, 1).any()
    if settings.target_type == "number" or (
        settings.target_type == "auto" and column.kind == "number" and not whole and settings.classes is None
    ):
        return _numbers(name, column), None
    return classes_of(column.words(), settings, name)


def classes_of(words: Sequence[str | None], settings: FileSettings, name: str) -> Targets:
    """The number of each row's class, and the names of all classes."""
    occurring = sorted({word for word in words if word is not None}, key=natural)
    known = settings.classes or tuple(occurring)
    if strange := [word for word in occurring if word not in known]:
        raise InputError(f"dataset.classes must name every class of {name!r}; {listed(strange)} is not among them")
    if len(set(known)) < len(known):
        raise InputError(f"dataset.classes must name each class once; got {shown(list(known))}")
    if len(known) > MOST_CLASSES:
        raise InputError(
            f"dataset.target: column {name!r} has {len(known):,} different values, which are too many classes; "
            "use task=regression with dataset.target_type=number if it is a quantity"
        )
    places = {word: place for place, word in enumerate(known)}
    return np.array([places[word] for word in words if word is not None], np.int64), known


def _several(names: Sequence[str], columns: Sequence[Column], settings: FileSettings) -> Targets:
    """0 and 1 in all columns are labels, of which a sample may have several; other numbers are numbers."""
    if settings.classes is not None:
        raise InputError("dataset.classes needs a single target column; remove it, as several columns are their names")
    numbers = np.stack([_numbers(name, column) for name, column in zip(names, columns, strict=True)], axis=1)
    switches = bool(np.isin(numbers, (0, 1)).all())
    if settings.target_type == "class" and not switches:
        raise InputError("dataset.target: several columns of classes must hold 0 and 1, or true and false")
    if switches and settings.target_type != "number":
        return numbers.astype(np.int64), tuple(names)
    return numbers, None


def _numbers(name: str, column: Column) -> NDArray[np.float32]:
    if column.numbers is None:
        raise InputError(f"dataset.target: column {name!r} must hold numbers; got {_some(column)}")
    return column.numbers.astype(np.float32)


def _some(column: Column) -> str:
    return shown(next((value for value in column.raw.tolist() if value is not None), None))
