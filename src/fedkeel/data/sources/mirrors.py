"""The published files of a data set, from the addresses that are known to have them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from fedkeel.data.sources.download import Published, UnreachableError, complete
from fedkeel.data.sources.layout import Layout
from fedkeel.data.sources.source import Kind, Place, Source, SourceError, is_offline
from fedkeel.data.sources.unpack import unpack


@dataclass(frozen=True)
class Mirrored(Source):
    """Files that several addresses have; an address is what a file's name is appended to."""

    layout: Layout
    """What an archive contains of the data set, and where."""
    files: tuple[Published, ...]
    addresses: tuple[str, ...]
    kind: ClassVar[Kind] = "mirrors"

    def __str__(self) -> str:
        others = len(self.files) - 1
        return f"download of {self.files[0].name}{f' and {others} more' if others else ''}"

    @property
    def archives(self) -> tuple[str, ...]:
        """The published archives."""
        return tuple(file.name for file in self.files if file.is_archive)

    def needs_network(self, root: Path) -> bool:
        """Not if the user has put all published files into the data set's folder."""
        return not all((root / file.name).is_file() for file in self.files)

    def fetch(self, place: Place) -> None:
        """Downloads what is not there yet, checks it, and unpacks archives."""
        for file in self.files:
            path = self._obtain(file, place)
            if file.is_archive:
                unpack(path, place.into, self.layout.wanted)
            else:
                shutil.copyfile(path, place.into / file.name)

    def _obtain(self, file: Published, place: Place) -> Path:
        """The published file: the user's own copy, an earlier download, or a new one."""
        failures: dict[str, list[str]] = {}
        for path in (place.root / file.name, place.downloads / file.name):
            if path.is_file():
                wrong = file.mismatch(path)
                if not wrong:
                    return path
                failures[wrong] = [str(path)]
        bases = [*([f"{place.mirror}{place.root.name}/"] if place.mirror else []), *self.addresses]
        for base in () if is_offline() else bases:
            try:
                return _download(f"{base}{file.name}", file, place)
            except SourceError as error:
                failures.setdefault(str(error), []).append(_host(base))
        raise SourceError("; ".join(f"{_listed(whose)} {what}" for what, whose in failures.items()))


def _download(url: str, file: Published, place: Place) -> Path:
    """A file gets its name only when it is complete and its checksum is right."""
    host = _host(url)
    if host in place.unreachable:
        raise UnreachableError(place.unreachable[host])
    place.downloads.mkdir(exist_ok=True)
    part = place.downloads / f"{file.name}.part"
    try:
        complete(url, file, part)
    except UnreachableError as error:
        place.unreachable[host] = str(error)
        raise
    path = place.downloads / file.name
    os.replace(part, path)
    return path


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _listed(names: list[str]) -> str:
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last
