"""What models and their options accept, with the words for error messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    "token sequences (length,) with a vocabulary (dataset.vocabulary, or vocabulary= in Python)",
    lambda inputs: inputs.vocabulary is not None and len(inputs.shape) == 1,
)


@dataclass(frozen=True)
class Option(Accepts):
    """An option of models."""

    meaning: str
    """One plain sentence."""
    schema: Mapping[str, Any]
    """The same condition as a JSON schema."""


def _count(meaning: str, *, null: bool = False) -> Option:
    counts: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
    return Option(
        f"a whole number from 1 to 1,000,000{', or null' * null}",
        lambda value: (null and value is None) or (type(value) is int and 1 <= value <= 1_000_000),
        meaning,
        {"anyOf": [counts, {"type": "null"}]} if null else counts,
    )


OPTIONS = {
    "norm": Option(
        f"one of {', '.join(NORMS)}",
        lambda value: value in NORMS,
        "The normalisation layers: batch norm, group norm, or none.",
        {"enum": [*NORMS]},
    ),
    "dropout": Option(
        "at least 0 and less than 1",
        lambda value: type(value) in (int, float) and 0 <= value < 1,
        "The probability with which dropout sets a value to zero during training.",
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    ),
    "embedding": _count("The length of the vector that stands for a token."),
    "filters": _count("The number of filters of each width."),
    "hidden": _count("The width of the two hidden layers before the last one; with null there are none.", null=True),
    "projection": _count(
        "The width of a projection between the body and the head, as MOON uses it; with null there is none.", null=True
    ),
}
