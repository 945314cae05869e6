"""What a source of a data set is, and the folders that it works in."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from fedkeel.errors import InputError, shown

Kind = Literal["mirrors", "packages"]
"""The published files on the web, or a package that contains them."""
_KINDS: dict[str, Kind] = {"mirrors": "mirrors", "packages": "packages"}


def as_kind(given: str) -> Kind:
    """The kind of that name."""
    if given not in _KINDS:
        raise InputError(f"source must be {' or '.join(_KINDS)}; got {shown(given)}")
    return _KINDS[given]


class SourceError(InputError):
    """A source could not deliver."""


@dataclass(frozen=True)
class Place:
    """The folders of one attempt to fetch a data set."""

    root: Path
    """The data set's folder in the cache, where users may have put files by hand."""
    work: Path
    """An empty folder for anything; it is deleted afterwards."""
    into: Path
    """An empty folder that receives the data set's files."""
    mirror: str | None = None
    """The user's own mirror, which comes before all others."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """Hosts that did not answer in this attempt, each with the reason: no source asks them twice."""

    @property
    def downloads(self) -> Path:
        """Where downloads are kept until the data set is complete, so that the next attempt can resume them."""
        return downloads(self.root)


class Source(ABC):
    """Somewhere a data set's canonical files come from; its text form says what is tried."""

    kind: ClassVar[Kind] = "packages"

    @property
    def archives(self) -> tuple[str, ...]:
        """The archives that this source would also take from the data set's folder."""
        return ()

    def needs_network(self, root: Path) -> bool:
        """Whether it must download something, given what is in the data set's folder."""
        return True

    @abstractmethod
    def fetch(self, place: Place) -> None:
        """Puts the files into `place.into`, or raises a SourceError."""


def downloads(root: Path) -> Path:
    """The folder of a data set's unfinished downloads."""
    return root.with_name(f".{root.name}.download")


def is_offline() -> bool:
    """Whether FEDKEEL_OFFLINE forbids to download anything."""
    return os.environ.get("FEDKEEL_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")


def user_mirror() -> str | None:
    """The address in FEDKEEL_MIRROR, which comes before all others."""
    given = os.environ.get("FEDKEEL_MIRROR", "").strip()
    if not given:
        return None
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and parts.port != 0 and (parts.hostname or "").encode("idna")
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or not given.isprintable() or " " in given:
        raise InputError(f"FEDKEEL_MIRROR must be an address such as http://127.0.0.1:8000/; got {shown(given)}")
    if "@" in parts.netloc:
        raise InputError("FEDKEEL_MIRROR must not contain a user name or a password; use an address that needs neither")
    return given.rstrip("/") + "/"
