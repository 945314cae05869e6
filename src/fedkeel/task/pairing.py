"""Functions of the user's that compare outputs [n, 1] with targets [n]: PyTorch makes [n, n] of their difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedkeel.errors import InputError

TRIED = 16
"""Samples."""


def check_pairing(field: str, name: str, function: Callable[[Tensor, Tensor], Any], z: Tensor, y: Tensor) -> None:
    """Refuse a function that gives another result where the outputs' last axis, of length 1, is left out.

    `z` and `y` are some outputs and targets. It is tried on more of such targets and on outputs of all sizes.
    """
    if z.shape != (*y.shape, 1):
        return
    targets = y[torch.arange(TRIED) % len(y)]
    tried = 2 * torch.sin(7.3 * torch.arange(targets.numel(), dtype=z.dtype, device=z.device)).view(*targets.shape, 1)
    try:
        first, again, flat = (_number(function(outputs, targets)) for outputs in (tried, tried, tried.squeeze(-1)))
    except Exception:  # a function that needs the axis cannot do without it
        return
    if _same(first, again) and not _same(first, flat):
        raise InputError(
            f"{field}: {name} compares every target with the outputs of all samples, as outputs have shape "
            f"{list(z.shape)} and targets {list(y.shape)}; use outputs.squeeze(-1) in it"
        )


def _number(found: Any) -> float:
    return float(found.mean() if isinstance(found, Tensor) else found)


def _same(first: float, second: float) -> bool:
    return bool(torch.isclose(torch.tensor(first), torch.tensor(second), rtol=1e-4, equal_nan=True))
