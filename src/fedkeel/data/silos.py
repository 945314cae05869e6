"""What clients hand over in Python: arrays of each, and possibly test rows of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fedkeel.data.datasets import Examples
from fedkeel.data.given import Arrays, Vocabulary, examples
from fedkeel.data.holdout import check_share, joined
from fedkeel.data.partition import Assignment
from fedkeel.errors import InputError, described


def common_test(test: Any, vocabulary: Vocabulary) -> Examples | None:
    """A common test set, where `test` is one."""
    if isinstance(test, tuple | list) and len(test) == 2:
        return examples(test[0], test[1], vocabulary)
    check_share("test", test)
    return None


def what(clients: Any) -> str:
    """What was given for a list of clients."""
    if isinstance(clients, Mapping):
        return "a dict; give list(clients.values()), and client_names=list(clients)"
    return "an empty one" if isinstance(clients, Sequence) and not len(clients) else described(clients)


def pair(number: int, given: Any) -> tuple[Arrays, Arrays | None]:
    """(A client's training arrays, its test arrays if it brings any)."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(
            f"clients[{number}] must be a pair (x, y), or ((x, y), (x_test, y_test)); got {described(given)}"
        )
    first, second = given
    if not isinstance(first, tuple):
        return (first, second), None
    for each in (first, second):
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise InputError(f"clients[{number}] must be ((x, y), (x_test, y_test)); one of these is not a pair")
    return first, (second[0], second[1])


def one(number: int, arrays: Arrays, vocabulary: Vocabulary, names: Sequence[str] | None) -> Examples:
    """A client's samples; what is wrong with them is told with the client."""
    try:
        return examples(arrays[0], arrays[1], vocabulary)
    except InputError as error:
        who = f" ({names[number]})" if names is not None and number < len(names) else ""
        raise InputError(f"clients[{number}]{who}: {error}") from None


def side_by_side(parts: Sequence[Examples]) -> tuple[Examples, Assignment]:
    """All clients' samples, one client's after the other's; who has none has no say in their shapes."""
    full = [part for part in parts if len(part)] or [*parts[:1]]
    together = Examples(torch.cat([p.x for p in full]), torch.cat([p.y for p in full]))
    ends = np.cumsum([0, *(len(part) for part in parts)])
    return together, joined([np.arange(first, last) for first, last in pairwise(ends)])
