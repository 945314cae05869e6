"""A table in memory: named columns of numbers, switches or words, whatever file they came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.summaries import Floats
from fedkeel.errors import InputError, label, shown

Kind = Literal["number", "boolean", "text", "date", "other"]
Rows = NDArray[np.int64] | NDArray[np.bool_]

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>"})
"""Cells of a CSV file that hold no value, in lower case."""
_SWITCHES = {"true": 1.0, "false": 0.0}
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
)
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one column; `raw` has them as they were found, and None where one is missing."""

    kind: Kind
    raw: NDArray[Any]
    numbers: Floats | None = None
    """For numbers and switches (0 and 1), with NaN where one is missing."""

    @property
    def missing(self) -> NDArray[np.bool_]:
        """[rows], where there is no value."""
        if self.numbers is not None:
            return np.isnan(self.numbers)
        return np.array([value is None for value in self.raw], bool)

    def words(self) -> list[str | None]:
        """Every value as a word; numbers that are equal give the same one: 1 and 1.0 are '1'."""
        if self.kind == "boolean" and self.numbers is not None:
            return [None if v != v else "true" if v else "false" for v in self.numbers.tolist()]
        if self.numbers is not None:
            return [None if v != v else _plain(v) for v in self.numbers.tolist()]
        return self.names()

    def names(self) -> list[str | None]:
        """Every value as it was written: '007' stays that."""
        if self.raw.dtype.kind == "f":
            return [None if v != v else _plain(v) for v in self.raw.tolist()]
        return [None if value is None else str(value).strip() for value in self.raw.tolist()]

    def take(self, rows: Rows) -> Column:
        """These rows alone."""
        return Column(self.kind, self.raw[rows], None if self.numbers is None else self.numbers[rows])


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length, and where they came from."""

    columns: Mapping[str, Column]
    source: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).raw) if self.columns else 0

    def take(self, rows: Rows) -> Table:
        """These rows alone."""
        return Table({name: column.take(rows) for name, column in self.columns.items()}, self.source)

    def find(self, name: str, field: str) -> Column:
        """The column that a setting names."""
        if name not in self.columns:
            raise InputError(f"{field}: {label(self.source)} has no column {name!r}; choose {listed(self.columns)}")
        return self.columns[name]


def listed(names: Iterable[str], most: int = 10) -> str:
    """Some names in a sentence: 'one of a, b, ...'."""
    found = [label(name) for name in names]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"{'one of ' if len(found) > 1 else ''}{', '.join(found[:most])}{more}"


def parse(name: str, cells: Sequence[str], missing: frozenset[str]) -> Column:
    """A column of a CSV file: numbers if all of its values are, switches if all are true or false, else words."""
    if not missing and (numbers := _all_numbers(cells)) is not None:
        raw = _objects(cells)
        raw[np.isnan(numbers)] = None
        return _checked(name, Column("number", raw, numbers))
    words = [cell.strip() for cell in cells]
    raw = np.array([None if word.lower() in MISSING or word in missing else word for word in words], object)
    present = [word for word in raw if word is not None]
    numbers = _numbers(raw)
    if numbers is not None:
        return _checked(name, Column("number", raw, numbers))
    if all(word.lower() in _SWITCHES for word in present):
        return Column("boolean", raw, np.array([np.nan if w is None else _SWITCHES[w.lower()] for w in raw]))
    if all(_DATE.fullmatch(word) for word in present):
        return Column("date", raw)
    if all(_DECIMAL_COMMA.fullmatch(word) for word in present):
        raise InputError(f"data: column {name!r} has numbers with a decimal comma; write 1.5 instead of 1,5")
    return Column("text", raw)


def odd_words(column: Column) -> list[str]:
    """The words among what is otherwise a column of numbers; none where most values are words."""
    present = [word for word in column.raw if isinstance(word, str)]
    odd = [word for word in present if _number(word) is None]
    return sorted(set(odd)) if len(odd) < 0.2 * len(present) else []


def column_of(name: str, values: Any) -> Column:
    """A column from an array or a list of Python values; words in it stay words."""
    array = values if isinstance(values, np.ndarray) else _array(values)
    if array.ndim != 1:
        return Column("other", _objects(array))
    kind = array.dtype.kind
    if kind == "b":
        return Column("boolean", array, array.astype(np.float64))
    if kind in "iuf":
        return _checked(name, Column("number", array, array.astype(np.float64)))
    if kind in "Mm":
        return Column("date", array)
    if kind not in "OUS":
        return Column("other", _objects(array))
    return _checked(name, _of_objects(_objects([None if _absent(value) else value for value in array.tolist()])))


def joined(name: str, one: Column, other: Column) -> Column:
    """The values of one column after those of another."""
    return column_of(name, [*one.raw.tolist(), *other.raw.tolist()])


def _array(values: Any) -> NDArray[Any]:
    """A list as an array of its own kind, where it has one: NumPy would turn [1, 'a'] and [True, 2] into words."""
    items = list(values)
    if len({type(item) for item in items}) == 1 and isinstance(items[0], bool | int | float):
        return np.array(items)
    return _objects(items)


def _objects(items: Any) -> NDArray[Any]:
    """NumPy would make more axes of items that are lists."""
    made = np.empty(len(items), object)
    for place, item in enumerate(items):
        made[place] = item
    return made


def _of_objects(raw: NDArray[Any]) -> Column:
    present = [value for value in raw if value is not None]
    if all(isinstance(value, bool | np.bool_) for value in present) and present:
        return Column("boolean", raw, _floats(raw))
    if all(isinstance(value, Real) or type(value).__name__ == "Decimal" for value in present):
        return Column("number", raw, _floats(raw))
    if all(isinstance(value, str) for value in present):
        return Column("text", raw)
    if all(isinstance(value, str | int | float) for value in present):
        return Column(
            "text", _objects([_plain(v) if isinstance(v, float) else v if v is None else str(v) for v in raw])
        )
    if any(isinstance(value, date | time | timedelta | np.datetime64) for value in present):
        return Column("date", raw)
    return Column("other", raw)


def _checked(name: str, column: Column) -> Column:
    if column.numbers is not None and np.isinf(column.numbers).any():
        raise InputError(f"data: column {name!r} holds infinite numbers; write finite ones, or leave them out")
    return column


def _absent(value: object) -> bool:
    """None, NaN, and what pandas writes for a missing value."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and value != value


def _floats(raw: NDArray[Any]) -> Floats:
    return np.array([np.nan if value is None else _float(value) for value in raw], np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _all_numbers(cells: Sequence[str]) -> Floats | None:
    """The same for cells as they stand in a file, where none is empty: this is most of what large files hold."""
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def _numbers(raw: NDArray[Any]) -> Floats | None:
    """All values as numbers, or None if one is not; a column without values is one of numbers."""
    try:
        return np.array(["nan" if word is None else word for word in raw], dtype=str).astype(np.float64)
    except ValueError:
        return None


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _plain(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def refusal(name: str, column: Column) -> str | None:
    """Why a column cannot be a feature, where it cannot, and what to do."""
    if column.kind == "date":
        return (
            f"column {name!r} holds dates or times; name it in dataset.ignore, or replace it by a number, such as an "
            "age in days"
        )
    if column.kind == "other":
        example = next((value for value in column.raw.tolist() if value is not None), None)
        return f"column {name!r} holds values such as {shown(example)}; name it in dataset.ignore"
    if odd := odd_words(column) if column.kind == "text" else []:
        some = ", ".join(map(repr, odd[:3])) + (", ..." if len(odd) > 3 else "")
        return (
            f"column {name!r} holds numbers, but also {some}; name such words in dataset.missing_values if they mean "
            "that a value is missing, or name the column in dataset.categorical"
        )
    return None
