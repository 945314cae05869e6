"""The axes that curves are drawn over: their names, and units in which their numbers are short."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from fedkeel.study.plan import At

SECONDS = ((3 * 86_400, 86_400, "d"), (3 * 3_600, 3_600, "h"), (0, 1, "s"))
BYTES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (0, 1, "B"))
"""(From which size of the largest number on, how many make one, name)."""
WORDS: dict[At, str] = {
    "rounds": "rounds",
    "time": "virtual time",
    "uploads": "uploads received",
    "bytes": "data sent up and down",
}


STEEP = 100
"""Values of which the largest is more than so many times the smallest are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Scale:
    """An axis."""

    label: str
    unit: float
    """What the numbers are divided by."""
    whole: bool
    """Whether only whole numbers make sense."""


def axis(at: At, largest: float) -> Scale:
    """Of a scale whose numbers go up to the largest."""
    if at not in ("time", "bytes"):
        return Scale(WORDS[at], 1, True)
    size, name = next((size, name) for least, size, name in (SECONDS if at == "time" else BYTES) if largest >= least)
    return Scale(f"{WORDS[at]} ({name})", size, False)


def is_steep(values: Iterable[float]) -> bool:
    """Whether a linear axis would flatten most of what is drawn."""
    known = [value for value in values if isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) > STEEP * min(known)
