"""Arrays as users hand them over, turned into tensors; what cannot be learnt from is refused with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedkeel.data.datasets import Examples
from fedkeel.errors import InputError, described, shown

Arrays = tuple[ArrayLike, ArrayLike]
Vocabulary = int | Literal["auto"] | None
"""Of token ids: how many there are, or that they are to be counted; None for samples that are numbers."""
_WAY_OUT = "np.unique(y, return_inverse=True)[1] turns names into integers"


def examples(x: ArrayLike, y: ArrayLike, vocabulary: Vocabulary = None) -> Examples:
    """Samples and targets as tensors.

    Samples become float32, or int64 where a vocabulary says that they are token ids. Whole numbers and booleans stay
    whole numbers as targets, all others become float32; a last axis of length one is left out.
    """
    samples, targets = _tensor("x", x), _tensor("y", y)
    if samples.dim() == 0 or targets.dim() == 0:
        raise InputError("x and y must be arrays with one row per sample; got a single number")
    if samples.is_complex() or targets.is_complex():
        raise InputError("x and y must be real numbers; got complex ones")
    if len(samples) != len(targets):
        raise InputError(f"x has {len(samples)} samples, but y has {len(targets)}; give one target per sample")
    return Examples(_samples(samples, vocabulary), _targets(targets))


def _samples(samples: Tensor, vocabulary: Vocabulary) -> Tensor:
    if vocabulary is not None:
        whole = samples if not samples.is_floating_point() else samples.long()
        if samples.is_floating_point() and not torch.equal(whole.to(samples.dtype), samples):
            raise InputError("x must hold token ids, which are whole numbers, as vocabulary= is given; got fractions")
        return whole.to(torch.int64).contiguous()
    samples = samples.to(torch.float32).contiguous()
    if not bool(torch.isfinite(samples).all()):
        raise InputError(
            "x holds NaN, infinity or numbers that float32 cannot hold; fill in missing values first, "
            "or let a table reader do it (dataset.missing)"
        )
    return samples


def _targets(targets: Tensor) -> Tensor:
    if targets.dim() > 1 and targets.shape[-1] == 1:
        targets = targets.squeeze(-1)
    if not targets.is_floating_point():
        return targets.to(torch.int64)
    targets = targets.to(torch.float32)
    if not bool(torch.isfinite(targets).all()):
        raise InputError("y holds NaN, infinity or numbers that float32 cannot hold; leave out samples without target")
    return targets


def _tensor(field: str, values: ArrayLike) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values, order="C")
    except (TypeError, ValueError):
        raise InputError(
            f"{field} must be an array of numbers; got {described(values)}, whose rows differ in length or kind; give "
            "every row the same shape"
        ) from None
    if array.dtype.kind in "USO":
        array = _numbers(field, array)
    if array.dtype.kind in "mM":
        raise InputError(f"{field} must hold numbers; got dates or times; turn them into numbers, such as days")
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable))
    except (TypeError, ValueError):
        raise InputError(f"{field} must hold numbers; got {described(array)}; convert it to float32") from None


def _numbers(field: str, array: NDArray[Any]) -> NDArray[Any]:
    """Python objects that are all numbers, as a column of a pandas table may hold them."""
    text = next((each for each in array.flat if isinstance(each, str)), None)
    if text is not None:
        help_ = _WAY_OUT if field == "y" else "turn texts into token ids, and categories into numbers"
        raise InputError(f"{field} must hold numbers; got text such as {shown(str(text))}; {help_}")
    try:
        whole = all(isinstance(each, int | np.integer) for each in array.flat)
        return array.astype(np.int64 if whole else np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{field} must hold numbers; got Python objects such as {shown(array.flat[0])}; convert it to float32"
        ) from None


def count_tokens(parts: Sequence[Examples], given: Vocabulary) -> int | None:
    """How many token ids there are: as told, or as found."""
    if given is None:
        return None
    held = [part.x for part in parts if part.x.numel()]
    low, high = min(int(x.min()) for x in held), max(int(x.max()) for x in held)
    known = given if given != "auto" else high + 1
    if not isinstance(known, int | np.integer) or isinstance(known, bool) or known < 1:
        raise InputError(f"vocabulary must be a whole number of at least 1, or 'auto'; got {shown(given)}")
    if low < 0 or high >= known:
        raise InputError(
            f"x holds token ids from {low} to {high}, but the vocabulary has {known}; number them from 0 to {known - 1}"
        )
    return int(known)


def count_outputs(parts: Sequence[Examples]) -> int:
    """How many classes whole-numbered targets have, or how many numbers real ones."""
    first = parts[0].y
    if first.is_floating_point():
        return 1 if first.dim() == 1 else int(first.shape[-1])
    return max(int(part.y.max()) if part.y.numel() else 0 for part in parts) + 1


def same_targets(parts: Sequence[Examples]) -> None:
    """Refuse targets of different kinds or shapes."""
    kinds = {(part.y.is_floating_point(), tuple(part.y.shape[1:])) for part in parts if len(part)}
    if len(kinds) > 1:
        told = sorted(f"{'real' if real else 'whole'} numbers of shape {list(shape)}" for real, shape in kinds)
        raise InputError(f"y must be of one kind for all clients and sets; got {' and '.join(told)}; convert all alike")


def read_all(dataset: Any) -> tuple[Tensor, Tensor]:
    """Every (x, y) pair of a map-style torch data set."""
    iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    if iterable or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"dataset must be a map-style torch Dataset of (x, y) pairs, with a length; got {type(dataset).__name__}; "
            "collect the samples of an iterable one in a list first"
        )
    try:
        pairs = [(x, y) for x, y in (dataset[i] for i in range(len(dataset)))]
        x = torch.stack([torch.as_tensor(np.asarray(x) if not isinstance(x, Tensor) else x) for x, _ in pairs])
        y = torch.stack([torch.as_tensor(y) for _, y in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"dataset must give (x, y) pairs of numbers, all samples of one shape ({' '.join(str(error).split())}); "
            "convert images to tensors and bring them to one size first"
        ) from error
    return x, y
