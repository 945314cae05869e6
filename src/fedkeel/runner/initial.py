"""Weights to start from (`init`): those of another run, or of a file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedkeel.config.files import open_file, reason
from fedkeel.config.usercode import said
from fedkeel.errors import InputError, described, label
from fedkeel.record.folder import START_WEIGHTS, begun, complete
from fedkeel.runner.earlier import MODEL

SHOWN = 3
"""Names that a message shows."""
COPY = f"{START_WEIGHTS}.safetensors"
"""What a run started from, in its own folder: it can be resumed when the other one is gone."""

Weights = dict[str, Tensor]


def load(module: nn.Module, source: str, copy: Path | None = None) -> None:
    """Put the weights and buffers into the model; whatever does not fit is refused, and the model stays as it is.

    With `copy`, they are taken from this file if it is there.
    """
    place = source if copy is None or not copy.is_file() else str(copy)
    found, own = _read(place), module.state_dict()
    _check(label(place), found, own)
    module.load_state_dict(found)


def _read(source: str) -> Weights:
    """By name."""
    path = Path(source)
    try:
        if path.is_dir():
            path = _of_run(path)
        with open_file(path):
            pass
        return load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    except OSError as error:
        raise InputError(
            f"init: {label(str(path))} cannot be read ({reason(error)}); name a run folder or a file of weights"
        ) from None
    except SafetensorError as error:
        raise InputError(
            f"init: {label(str(path))} is not a safetensors file ({said(error)}); name another file"
        ) from None


def _of_run(folder: Path) -> Path:
    """The model of a finished run."""
    named = f"init: {label(str(folder))}"
    if not begun(folder):
        raise InputError(f"{named} holds no run; name the folder of a finished run, or a file of weights")
    if not complete(folder):
        raise InputError(f"{named} holds a run that is not finished; resume it first, or name another one")
    if not (folder / MODEL).is_file():
        raise InputError(f"{named} has no {MODEL}, as its method trains no global model; name another run or a file")
    return folder / MODEL


def _unpickled(path: Path) -> Weights:
    """What torch.save wrote: tensors by name, or a dictionary in which they are called `state_dict`."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"init: {label(str(path))} is not a file of plain weights ({type(error).__name__}); save "
            "model.state_dict() with torch.save or safetensors"
        ) from None
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(each, Tensor) for each in found.values()):
        raise InputError(f"init: {label(str(path))} must hold tensors by name (a state_dict); got {described(found)}")
    return {str(name): tensor for name, tensor in found.items()}


def _check(named: str, found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse weights of another model."""
    for what, names in (("lacks", own.keys() - found.keys()), ("has", found.keys() - own.keys())):
        if names:
            told = ", ".join(sorted(names)[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
            whose = "which the model has" if what == "lacks" else "which the model does not have"
            raise InputError(f"init: {named} {what} {told}, {whose}; use weights of the same model")
    for name, tensor in own.items():
        other = found[name]
        if other.shape != tensor.shape:
            raise InputError(
                f"init: {name} must have shape {list(tensor.shape)}; got {list(other.shape)} in {named}; use weights "
                "of the same model"
            )
        if other.dtype != tensor.dtype:
            mine, theirs = (str(each.dtype).removeprefix("torch.") for each in (tensor, other))
            raise InputError(
                f"init: {name} must be of type {mine}; got {theirs} in {named}; convert the file or set dtype"
            )
        if other.is_floating_point() and not bool(other.isfinite().all()):
            raise InputError(f"init: {name} in {named} has values that are not finite; use weights that are")
