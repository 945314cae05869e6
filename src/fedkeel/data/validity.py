"""Whether data is what it says: shapes, types, labels and who holds what."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.datasets import Examples
from fedkeel.data.partition import Assignment
from fedkeel.errors import InputError


def class_labels(part: Examples) -> NDArray[np.int64] | None:
    """[n], the class of each sample, where targets are classes."""
    return None if part.y.is_floating_point() or part.y.dim() != 1 else part.y.cpu().numpy()


def check(examples: Examples, which: str, classes: int, may_lack: bool = False) -> None:
    """Refuse what is no set of samples, and labels that are none of the classes; it `may_lack` samples on a site."""
    if not isinstance(examples, Examples) or not _fit(examples.x, examples.y):
        raise InputError(
            f"data: {which} samples must be Examples of a tensor x [n, ...] and one y [n, ...] of int64 or real numbers"
        )
    if len(examples.y) == 0:
        if may_lack:
            return
        raise InputError(f"data: there are no {which} samples; give at least one")
    labels = class_labels(examples)
    if labels is not None and ((low := labels.min()) < 0 or labels.max() >= classes):
        raise InputError(
            f"data: {which} labels must be whole numbers from 0 to {classes - 1}; got {low} to {labels.max()}; "
            "np.unique(y, return_inverse=True)[1] numbers classes from 0"
        )


def _fit(x: Any, y: Any) -> bool:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dim() == 0 or y.dim() == 0:
        return False
    return (y.dtype == torch.int64 or y.is_floating_point()) and len(y) == len(x)


def check_alike(held: Examples, train: Examples, which: str) -> None:
    """Refuse samples to test on that do not look like those for training."""
    own, other = ((tuple(e.x.shape[1:]), e.x.dtype) for e in (train, held))
    if own != other:
        raise InputError(
            f"data: {which} samples have shape {other[0]} and type {other[1]}, but training samples have "
            f"shape {own[0]} and type {own[1]}; prepare both in the same way"
        )


def check_assignment(assignment: Assignment, samples: int, which: str, may_lack: bool = False) -> None:
    """Refuse an assignment that does not fit so many samples."""
    indices, offsets = assignment.indices, assignment.offsets
    for array in (indices, offsets):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != "i":
            raise InputError(f"data: the assignment of {which} samples must be made of two arrays of whole numbers")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
        raise InputError(f"data: the offsets of the {which} assignment must go from 0 up to the number of its indices")
    if len(indices) and (indices.min() < 0 or indices.max() >= samples):
        raise InputError(
            f"data: the {which} assignment names samples {indices.min()} to {indices.max()}; "
            f"they must be from 0 to {samples - 1}"
        )
    if not len(indices) and not may_lack:
        raise InputError(f"data: no client has any {which} samples; give samples to at least one")
