"""Rows that lack values: refused, dropped or left to be filled in, as the rule of each column says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files.build import OPEN
from fedkeel.data.files.settings import OTHERS, FileSettings
from fedkeel.errors import InputError, label

Gaps = Mapping[str, NDArray[np.bool_]]
"""By column that lacks values: where."""


def complete(gaps: Gaps, needed: Sequence[str], part: NDArray[np.int8], settings: FileSettings) -> NDArray[np.int64]:
    """The rows that stay; `needed` are targets and clients, which cannot be filled in."""
    refused = [name for name in gaps if settings.rule(name) == "error"]
    if refused:
        raise InputError(
            f"dataset.missing: values are missing in {_counted(gaps, refused, len(part))}; set dataset.missing to "
            "drop, mean, median or constant"
        )
    for name in needed:
        if name in gaps and settings.rule(name) != "drop":
            raise InputError(
                f"dataset.missing: {settings.rule(name)} cannot fill in column {name!r}, a target or client, which is "
                f"missing in {gaps[name].sum()} of {len(part)} rows; drop them with "
                f"dataset.missing={{{name}: drop, '{OTHERS}': {settings.rule(name)}}}"
            )
    dropped = [gap for name, gap in gaps.items() if settings.rule(name) == "drop"]
    rows = np.flatnonzero(~np.logical_or.reduce(dropped)) if dropped else np.arange(len(part))
    if not (part[rows] == OPEN).any():
        raise InputError("dataset.missing: drop leaves no row, as every row lacks a value; fill them in instead")
    return rows


def _counted(gaps: Gaps, names: Iterable[str], rows: int) -> str:
    told = [f"{label(name)} ({int(gaps[name].sum())})" for name in names]
    more = f" and {len(told) - 10} more" if len(told) > 10 else ""
    return f"{len(told)} column{'s' if len(told) > 1 else ''} of {rows} rows: {', '.join(told[:10])}{more}"
