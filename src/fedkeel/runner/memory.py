"""What can never fit into memory is refused before it is tried."""

from __future__ import annotations

from fedkeel.errors import InputError
from fedkeel.local.machine import free_bytes


def check(problem: str, needed: int, way: str) -> None:
    """Refuse what needs more bytes than are free; `way` says what needs less."""
    free = free_bytes()
    if needed > free:
        raise InputError(
            f"{problem}: this takes at least {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free; "
            f"use {way}"
        )
