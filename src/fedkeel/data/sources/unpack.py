"""Unpacks tar and zip archives: regular files only, and nothing outside of the folder that it is told."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath
from typing import IO

from fedkeel.data.sources import progress
from fedkeel.data.sources.source import SourceError
from fedkeel.errors import shown, words

Target = Callable[[str], str | None]
"""The path that a member of an archive gets, or None if it is not needed."""
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, BadGzipFile, EOFError, zlib.error, RuntimeError)


def unpack(archive: Path, into: Path, target: Target) -> None:
    """Writes the members that have a target below `into`; links and devices are left out."""
    progress.tell(f"unpacking {archive.name}", 0, None)
    try:
        for name, open_member in _members(archive):
            _check(archive, name)
            place = target(name)
            if place is not None:
                _check(archive, place)
                _write(into / place, open_member)
    except _DAMAGE as error:
        raise SourceError(f"{archive.name} is damaged ({words(error)})") from error


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes] | None]]]:
    """Names of files, each with a function that opens it."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield info.filename, lambda info=info: packed.open(info)  # type: ignore[misc]
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile():
                yield member.name, lambda member=member: tar.extractfile(member)  # type: ignore[misc]


def _check(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise SourceError(f"{archive.name} is refused: it would write to {shown(name)}, outside of its folder")


def _write(path: Path, open_member: Callable[[], IO[bytes] | None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = open_member()
    assert content is not None  # only regular files come here
    with content, path.open("wb") as out:
        shutil.copyfileobj(content, out)
