"""What models and their options accept, with the words that an error says it in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import NORMS


@dataclass(frozen=True)
class Accepts:
    """A condition and how to say it."""

    what: str
    holds: Callable[[Any], bool]


def images(smallest: int) -> Accepts:
    """Images with any number of channels whose sides have at least `smallest` pixels."""

    def holds(inputs: Inputs) -> bool:
        return inputs.vocabulary is None and len(inputs.shape) == 3 and min(inputs.shape[1:]) >= smallest

    return Accepts(f"images (channels, height, width) of at least {smallest} x {smallest} pixels", holds)


ARRAYS = Accepts("arrays of numbers of any shape (not token ids)", lambda inputs: inputs.vocabulary is None)
TOKENS = Accepts(
    "token sequences (length,) with a vocabulary",
    lambda inputs: inputs.vocabulary is not None and len(inputs.shape) == 1,
)

_COUNT = Accepts("a whole number from 1 to 1,000,000", lambda value: type(value) is int and 1 <= value <= 1_000_000)
_COUNT_OR_NONE = Accepts(f"{_COUNT.what}, or null", lambda value: value is None or _COUNT.holds(value))

OPTIONS = {
    "norm": Accepts(", ".join(NORMS), lambda value: value in NORMS),
    "dropout": Accepts("0 <= dropout < 1", lambda value: type(value) in (int, float) and 0 <= value < 1),
    "embedding": _COUNT,
    "filters": _COUNT,
    "hidden": _COUNT_OR_NONE,
    "projection": _COUNT_OR_NONE,
}
