"""Checks that a client rule sends what it declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from torch import Tensor

from fedkeel.methods.types import Message, Sends


def not_rows(name: str, tensor: Tensor, clients: int) -> str | None:
    """What is wrong with a tensor that does not have one row per client."""
    if tensor.dim() and len(tensor) == clients:
        return None
    return f"{name} must have one row per client, [{clients}, ...]; got shape {list(tensor.shape)}"


def undeclared(sends: Mapping[str, Sends], messages: Message, sums: Message, w: Tensor) -> str | None:
    """What is wrong with the messages and sums of k clients with weights `w` [k, D], if anything is."""
    for name, tensor in {**messages, **sums}.items():
        summed, width = name in sums, tensor.element_size()
        if not summed and (reason := not_rows(name, tensor, len(w))):
            return reason
        plain = width == w.element_size() and tensor.is_floating_point()
        numbers = tensor.numel() // (1 if summed else len(w))
        right = Sends(numbers, None if plain or summed else width, summed=summed)
        declared = sends.get(name)
        fits = declared is not None and replace(declared, exact=False) == right
        if declared is None or not (declared.recorded or declared.each_class or fits):
            return (
                f"it sends {name!r}, but its method `sends` declares {_typed(declared)} for it; declare "
                f'{{"{name}": {_typed(right)}}}, so that the bytes of an upload are known before training'
            )
    return None


def _typed(sends: Sends | None) -> str:
    """As a user writes it."""
    if sends is None:
        return "nothing"
    given = [f"{each.name}={getattr(sends, each.name)}" for each in fields(sends)[1:]
             if getattr(sends, each.name) != each.default]  # fmt: skip
    return f"Sends({', '.join([str(sends.numbers), *given])})"
