"""How much memory there is, so that what can never fit is refused before it is tried."""

from __future__ import annotations

import os
from pathlib import Path

from fedkeel.errors import InputError

MEMORY = Path("/proc/meminfo")


def free_bytes() -> int:
    """What may still be used, as far as the system says."""
    try:
        rows = (row.split() for row in MEMORY.read_text().splitlines())
        return next(1024 * int(row[1]) for row in rows if row[0] == "MemAvailable:")
    except (OSError, ValueError, IndexError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check(problem: str, needed: int, way: str) -> None:
    """Refuse what needs more bytes than are free; `way` says what needs less."""
    free = free_bytes()
    if needed > free:
        raise InputError(
            f"{problem}: this takes at least {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free; "
            f"use {way}"
        )
