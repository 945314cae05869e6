"""Which files make up a data set, how their content is recognised, and how they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.data.readers.content import Labels, locate, read_content, require
from fedkeel.errors import InputError

Splits = tuple[tuple[Any, Labels], tuple[Any, Labels]]
"""Training and test examples, each as (uint8 images or texts, labels)."""


@dataclass(frozen=True)
class File:
    """A file or folder, relative to the data set's folder; a file may also stand there as `name.gz`.

    `digest` is `algorithm:hex` of the content *before* gzip, so that every publisher's packing of the same
    bytes will do; without one, only the reader judges the content.
    """

    name: str
    digest: str | None = None


@dataclass(frozen=True)
class Layout:
    """One published form of a data set; `unpacked` is the folder that its published archive unpacks to."""

    files: tuple[File, ...]
    read: Callable[[Path], Splits]
    unpacked: str = "."

    def __str__(self) -> str:
        names = ", ".join(file.name for file in self.files)
        return names if self.unpacked == "." else f"{names} (there or in {self.unpacked}/)"

    @property
    def has_checksums(self) -> bool:
        """Whether there is anything to verify."""
        return any(file.digest for file in self.files)

    def find(self, root: Path) -> Path | None:
        """The folder below `root` that holds all files of this form."""
        for folder in (root, root / self.unpacked):
            if all(locate(folder, file.name) for file in self.files):
                return folder
        return None

    def wanted(self, member: str) -> str | None:
        """Where a member of the published archive goes, below the data set's folder; None if it is not needed."""
        name = member.removeprefix("./")
        if self.unpacked != ".":
            if not name.startswith(f"{self.unpacked}/"):
                return None
            name = name.removeprefix(f"{self.unpacked}/")
        needed = any(name in (file.name, f"{file.name}.gz") or name.startswith(f"{file.name}/") for file in self.files)
        return name if needed else None

    def verify(self, folder: Path) -> None:
        """Compares every file's content with its checksum."""
        for file in self.files:
            if file.digest is not None:
                _compare(require(folder, file.name), file.digest)


@dataclass(frozen=True)
class Found:
    """A complete data set on disk, in one of its forms."""

    layout: Layout
    folder: Path

    def state(self) -> dict[str, list[int]]:
        """Size and time of change of every file: what tells, at no cost, that it is the one verified."""
        paths = [require(self.folder, file.name) for file in self.layout.files]
        stats = {str(path.relative_to(self.folder)): path.stat() for path in paths}
        return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def find(root: Path, layouts: Sequence[Layout]) -> Found | None:
    """The first form that is complete below `root`."""
    for layout in layouts:
        folder = layout.find(root)
        if folder is not None:
            return Found(layout, folder)
    return None


def _compare(path: Path, digest: str) -> None:
    algorithm, _, expected = digest.partition(":")
    found = hashlib.new(algorithm, read_content(path), usedforsecurity=False).hexdigest()
    if found != expected:
        raise InputError(f"{path}: it has the {algorithm} checksum {found} instead of {expected}")
