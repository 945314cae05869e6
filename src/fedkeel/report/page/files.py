"""Files that are read once as long as they stay as they are: a live page asks for them again and again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Version:
    """A file as it is at the moment; a key for what was read from it."""

    path: Path
    size: int
    changed: int
    """Nanoseconds."""

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """None where there is no such file."""
        try:
            state = path.stat()
        except OSError:
            return None
        return cls(path, state.st_size, state.st_mtime_ns)
