"""Summaries and counts as they travel in messages: plain facts and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.summaries import NUMBERS, Counts, Summary
from fedkeel.errors import InputError

MOST = 10**12
"""The largest count of a site: sums of such counts are far from what an int64 holds."""


def summary_to_wire(summary: Summary) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The facts and the tensors of a message."""
    categories = {name: sorted(words) for name, words in summary.categories.items()}
    facts = {"rows": summary.rows, "categories": categories, "schema": summary.schema}
    arrays = {"count": summary.count} | {name: getattr(summary, name) for name in NUMBERS}
    return facts, {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def summary_from_wire(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Summary:
    """The summary again; refuses what is none."""
    rows, categories, schema = facts.get("rows"), facts.get("categories"), facts.get("schema")
    if type(rows) is not int or not 0 <= rows <= MOST or not isinstance(schema, str):
        raise InputError("a summary must tell its number of rows and its schema")
    if not isinstance(categories, Mapping) or not all(_are_words(each) for each in categories.values()):
        raise InputError("the categories of a summary must be lists of words by column")
    count = counts_from_wire(tensors.get("count"))
    if count.ndim != 1 or (count > rows).any():
        raise InputError("the counts of a summary must be one number per column, none larger than its rows")
    arrays = {}
    for name in NUMBERS:
        found = tensors.get(name)
        if found is None or found.dtype != torch.float64 or found.shape != count.shape:
            raise InputError(f"the tensor {name!r} of a summary must hold one float64 per column")
        arrays[name] = found.cpu().numpy()
    words = {str(name): frozenset(each) for name, each in categories.items()}
    summary = Summary(rows, count, **arrays, categories=words, schema=schema)
    if not summary.sound:
        raise InputError(
            "the numbers of a summary must be finite, its squares must not be negative, and no smallest value may be "
            "above the largest"
        )
    return summary


def counts_from_wire(counts: Tensor | None) -> Counts:
    """Whole numbers from 0 on; refuses others."""
    if counts is None or counts.dtype != torch.int64 or bool(((counts < 0) | (counts > MOST)).any()):
        raise InputError(f"counts must be whole numbers from 0 to {MOST:.0e}, as int64")
    found: Counts = counts.cpu().numpy()
    return found


def _are_words(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) for each in given)
