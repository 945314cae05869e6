"""Federated statistics of columns: each client summarises its own training rows, and the summaries are combined.

`summarise` runs where the rows are; what it returns is all that leaves a client. `combine` runs at the server. Counts,
means, standard deviations, smallest and largest values and sets of categories take one exchange. A median takes eight
more (`digit_counts`, `OrderStatistic`): the server asks how many values begin with certain bytes, and so finds the
exact value. No row leaves a client, but a median, a smallest and a largest value are values of somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Keys = NDArray[np.uint64]

NUMBERS = ("mean", "squares", "low", "high")
"""What a summary tells of each column, beside the count."""
EXCHANGES = 8
"""How often the server asks for `digit_counts`: once for every byte of a float64."""
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, eq=False)
class Summary:
    """What is known of the columns of one client, or of several together. NaN stands where there is no value."""

    rows: int
    count: Counts
    """[columns], values that are not missing."""
    mean: Floats
    squares: Floats
    """[columns], the sum of squared distances from the mean."""
    low: Floats
    high: Floats
    categories: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By column of categories: those that occur."""
    schema: str = ""
    """The digest of the columns and their kinds, where that is told: summaries of others cannot be combined."""

    @property
    def std(self) -> Floats:
        """[columns], the standard deviation of all values, NumPy's with `ddof=0`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(self.squares / self.count)

    @property
    def sound(self) -> bool:
        """Whether these can be the numbers of some rows; any of them may be left out (NaN)."""
        numbers = np.stack([getattr(self, name) for name in NUMBERS])
        of_nothing = np.nan_to_num(numbers[:, self.count == 0])
        halves = np.isnan(self.low) != np.isnan(self.high)
        wrong = np.isinf(numbers).any() or of_nothing.any() or halves.any()
        return not (wrong or (self.squares < 0).any() or (self.low > self.high).any())


def summarise(numbers: Floats, categories: Mapping[str, Sequence[str]] | None = None) -> Summary:
    """One client's rows [n, columns], with NaN for missing values, and its columns of categories by name."""
    present = ~np.isnan(numbers)
    count = present.sum(axis=0)
    some = count > 0
    safe = np.maximum(count, 1)
    with np.errstate(over="ignore", invalid="ignore"):  # who uses these checks them
        mean = np.where(present, numbers, 0.0).sum(axis=0) / safe
        squares = (np.where(present, numbers - mean, 0.0) ** 2).sum(axis=0)
    low = np.where(present, numbers, np.inf).min(axis=0, initial=np.inf)
    high = np.where(present, numbers, -np.inf).max(axis=0, initial=-np.inf)
    return Summary(
        len(numbers),
        count.astype(np.int64),
        np.where(some, mean, np.nan),
        squares,
        np.where(some, low, np.nan),
        np.where(some, high, np.nan),
        {name: frozenset(values) for name, values in (categories or {}).items()},
    )


def combine(summaries: Sequence[Summary]) -> Summary:
    """What one client with the rows of all of them would have told."""
    return reduce(_pair, summaries)


def _pair(one: Summary, other: Summary) -> Summary:
    """Means and squares as Chan et al. (1983) combine them, which keeps small deviations from a large mean."""
    count = one.count + other.count
    share = other.count / np.maximum(count, 1)
    first, second = np.nan_to_num(one.mean), np.nan_to_num(other.mean)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.where((one.count > 0) & (other.count > 0), second - first, 0.0)
    mean = np.where(one.count > 0, first + apart * share, second)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = one.squares + other.squares + apart**2 * one.count * share
    return Summary(
        one.rows + other.rows,
        count,
        np.where(count > 0, mean, np.nan),
        squares,
        np.fmin(one.low, other.low),
        np.fmax(one.high, other.high),
        {
            name: one.categories.get(name, frozenset()) | other.categories.get(name, frozenset())
            for name in {**one.categories, **other.categories}
        },
        one.schema,
    )


def digit_counts(numbers: Floats, prefixes: Keys, exchange: int) -> Counts:
    """[columns, 256]: of one client's values that begin with a column's prefix, how many go on with which byte.

    Values are ordered by `_keys`; `prefixes` [columns] hold the first `exchange` bytes of the value that is looked for.
    """
    columns = numbers.shape[1]
    heads = _keys(numbers) >> np.uint64(8 * (EXCHANGES - 1 - exchange))
    asked = (heads >> np.uint64(8) == prefixes) & ~np.isnan(numbers)
    digits = (heads & np.uint64(255)).astype(np.int64) + 256 * np.arange(columns)
    return np.bincount(digits[asked], minlength=256 * columns).reshape(columns, 256)


class OrderStatistic:
    """The server's search for the value of a given rank in each column, over `EXCHANGES` rounds of `digit_counts`."""

    def __init__(self, ranks: Counts) -> None:
        self.prefixes: Keys = np.zeros(len(ranks), np.uint64)
        self._ranks = ranks.copy()

    def take(self, counts: Sequence[Counts]) -> None:
        """Goes one byte further by what all clients answered."""
        total = np.sum(counts, axis=0)
        upto = np.cumsum(total, axis=1)
        digit = np.minimum((upto <= self._ranks[:, None]).sum(axis=1), 255)
        columns = np.arange(len(digit))
        self._ranks -= upto[columns, digit] - total[columns, digit]
        self.prefixes = (self.prefixes << np.uint64(8)) | digit.astype(np.uint64)

    @property
    def values(self) -> Floats:
        """[columns], after all exchanges."""
        bits = np.where(self.prefixes & _SIGN, self.prefixes ^ _SIGN, ~self.prefixes)
        return bits.view(np.float64)


def medians(
    clients: Sequence[Floats], count: Counts, total: Callable[[Counts], Counts] = lambda counts: counts
) -> Floats:
    """[columns], the exact median of all clients' values, of which there are `count`; NaN where there are none.

    `total` adds the counts of clients whose rows are elsewhere; it is called once in each of the `EXCHANGES`.
    """
    middle = [OrderStatistic(np.maximum(count - 1, 0) // 2), OrderStatistic(count // 2)]
    for exchange in range(EXCHANGES):
        asked = [
            reduce(np.add, (digit_counts(numbers, search.prefixes, exchange) for numbers in clients))
            for search in middle
        ]
        for search, counts in zip(middle, total(np.stack(asked)), strict=True):
            search.take([counts])
    low, high = (search.values for search in middle)
    with np.errstate(invalid="ignore", over="ignore"):
        found: Floats = np.where(count > 0, low + (high - low) / 2, np.nan)
    return found


def _keys(values: Floats) -> Keys:
    """Whole numbers in the order of the values: the bits of a float64, turned so that negative ones come first."""
    bits = (np.ascontiguousarray(values) + 0.0).view(np.uint64)  # there is one zero
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)
