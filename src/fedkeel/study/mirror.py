"""A run folder's files on their way to another machine: at every moment, the copy is a folder that can be resumed.

What depends on other files is read before these and written after them: the summary on everything, checkpoints on rows,
and rows on the description of the run.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fedkeel.record.checkpoints import Checkpoints
from fedkeel.record.durable import PARTIAL, sync_folder, synced, whole
from fedkeel.record.lock import BusyError, lock
from fedkeel.record.places import CHECKPOINTS, START_WEIGHTS
from fedkeel.record.schema import EXPERIMENT, LABELS, RUN, SUMMARY

CHUNK = 16 << 20
"""Bytes that are read at a time."""
SMALL = 100_000
"""Bytes that travel with a message; more are put somewhere else, and the message refers to them."""
Part = Any
"""Bytes, or what `put` has made of them."""
_FIRST = (f"{START_WEIGHTS}.safetensors", EXPERIMENT, RUN, LABELS)
"""Without them, rows are of no use."""
_ROWS = tuple(f"{name}.jsonl" for name in ("clients", "unfinished", "refused", "rounds", "history"))
"""In the order in which a run writes them."""
_CHECKPOINT = re.compile(rf"{CHECKPOINTS}/round-(\d+)")


@dataclass(frozen=True)
class Sent:
    """A file, or what was appended to it."""

    name: str
    parts: tuple[Part, ...]
    start: int = 0
    """Where the parts belong; at 0, the file is written anew."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder that is there as a whole or not at all."""

    name: str
    files: tuple[Sent, ...]


@dataclass(frozen=True)
class Changes:
    """What has changed in a folder."""

    new: tuple[Sent | Checkpoint, ...] = ()
    """In the order in which it is written."""
    gone: tuple[str, ...] = ()


class Source:
    """A folder that is copied; it may change meanwhile. `put` takes large pieces of files."""

    def __init__(self, folder: Path, put: Callable[[bytes], Part]) -> None:
        self.folder, self._put = folder, put
        self._known: dict[str, tuple[int, ...]] = {}
        """What the copy has: by name, something that differs if the file does."""

    def same(self) -> None:
        """The copy has what is here now. Rows are sent again all the same: a run may cut them off when it begins."""
        self._known = {name: _mark(os.stat(self.folder / name)) for name in self._names() if name not in _ROWS}

    def changes(self, all: bool = True) -> Changes:
        """What the copy does not have; with `all`, also files beside those that a run needs to be resumed."""
        names, new, known = self._names(all), list[Sent | Checkpoint](), dict[str, tuple[int, ...]]()
        missed = False
        for name in reversed(names):
            try:
                found = self._read(name, known)
            except FileNotFoundError:  # it was removed meanwhile
                missed = True
                continue
            new += [found] if found is not None else []
        lost = (name for name in self._known if name not in names and (all or _CHECKPOINT.fullmatch(name)))
        gone = () if missed else tuple(lost)  # what has come instead may have been missed
        self._known = {name: mark for name, mark in self._known.items() if name not in gone} | known
        return Changes(tuple(reversed(new)), gone)

    def _read(self, name: str, known: dict[str, tuple[int, ...]]) -> Sent | Checkpoint | None:
        """None if the copy has it; what it has then is noted."""
        path, before = self.folder / name, self._known.get(name)
        if _CHECKPOINT.fullmatch(name):
            mark = _mark(os.stat(path))
            if mark == before:
                return None
            files = tuple(Sent(each.name, self._parts(each)[0]) for each in sorted(path.iterdir()))
            if _mark(os.stat(path)) != mark:
                raise FileNotFoundError(name)
            known[name] = mark
            return Checkpoint(name, files)
        if name in _ROWS:
            return self._appended(name, before or (0, 0), known)
        mark = _mark(os.stat(path))
        if mark == before:
            return None
        parts, _ = self._parts(path)
        known[name] = mark
        return Sent(name, parts)

    def _appended(self, name: str, before: tuple[int, ...], known: dict[str, tuple[int, ...]]) -> Sent | None:
        status = os.stat(self.folder / name)
        if (status.st_ino, status.st_size) == before:
            return None
        start = before[1] if status.st_ino == before[0] and status.st_size > before[1] else 0
        parts, end = self._parts(self.folder / name, start)
        known[name] = status.st_ino, end
        return Sent(name, parts, start)

    def _parts(self, path: Path, start: int = 0) -> tuple[tuple[Part, ...], int]:
        """(The pieces of a file from there on, where they end)."""
        parts = list[Part]()
        with path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(CHUNK):
                parts.append(chunk if len(chunk) <= SMALL else self._put(chunk))
            return tuple(parts), file.tell()

    def _names(self, all: bool = True) -> list[str]:
        """In the order in which they are written."""
        if not self.folder.is_dir():
            return []
        return sorted(self._all() if all else self._needed(), key=_rank)

    def _all(self) -> Iterator[str]:
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            inside = name.startswith(f"{CHECKPOINTS}/")
            if _CHECKPOINT.fullmatch(name) or (not inside and not name.endswith(PARTIAL) and path.is_file()):
                yield name

    def _needed(self) -> Iterator[str]:
        yield from (name for name in (*_FIRST, *_ROWS) if (self.folder / name).is_file())
        with suppress(FileNotFoundError):
            names = (f"{CHECKPOINTS}/{path.name}" for path in (self.folder / CHECKPOINTS).iterdir())
            yield from [name for name in names if _CHECKPOINT.fullmatch(name)]


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _rank(name: str) -> tuple[int, int, str]:
    if name in _FIRST:
        return 0, _FIRST.index(name), ""
    if name in _ROWS:
        return 2, _ROWS.index(name), ""
    if found := _CHECKPOINT.fullmatch(name):
        return 3, int(found[1]), ""
    return (4, 0, "") if name == SUMMARY else (1, 0, name)


def apply(changes: Changes, folder: Path, get: Callable[[Part], bytes]) -> None:
    """Make the same changes in a copy; `get` returns what was put somewhere else."""
    for each in changes.new:
        path = folder / each.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(each, Checkpoint):
            _put_in_place(each, path, get)
        elif each.start:
            with path.open("r+b") as file:
                file.truncate(each.start)
                file.seek(each.start)
                _write(file, each.parts, get)
                os.fsync(file.fileno())
        else:
            with whole(path) as partial, partial.open("wb") as file:
                _write(file, each.parts, get)
    for name in changes.gone:
        _remove(folder / name)


def _write(file: BinaryIO, parts: Iterable[Part], get: Callable[[Part], bytes]) -> None:
    for part in parts:
        file.write(part if isinstance(part, bytes) else get(part))
    file.flush()


def _put_in_place(checkpoint: Checkpoint, path: Path, get: Callable[[Part], bytes]) -> None:
    """As `Checkpoints` writes them, under the same hidden names: it knows what to do with what a kill leaves."""
    new, old = (path.with_name(f".{path.name}.{stage}") for stage in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir()
    for each in checkpoint.files:
        with synced(new / each.name) as file:
            _write(file, each.parts, get)
    sync_folder(new)
    if path.exists():
        os.rename(path, old)
    os.rename(new, path)
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove(path: Path) -> None:
    """A folder gets another name first: what is half-removed must not be taken for a damaged checkpoint."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    gone = path.with_name(f".{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone)


class Copy:
    """The folder of a run that goes on elsewhere; it is held like that of a run that goes on here."""

    def __init__(self, folder: Path) -> None:
        """What an earlier copy left unfinished when it was killed is removed; `BusyError` if somebody works there."""
        self.folder = folder
        self._held: BinaryIO | None = None
        try:
            self._hold()
        except BusyError:
            self.close()
            raise
        Checkpoints(folder / CHECKPOINTS, None, ()).clean()
        for left in folder.glob(f"*{PARTIAL}"):
            left.unlink()

    def take(self, changes: Changes, get: Callable[[Part], bytes]) -> None:
        """Make changes that were made elsewhere."""
        apply(changes, self.folder, get)
        with suppress(BusyError):  # for a moment, somebody looks whether it is held
            self._hold()

    def _hold(self) -> None:
        """By the file by which `worked_on` looks; it may be another one than before."""
        with suppress(FileNotFoundError):
            path = self.folder / "history.jsonl"
            if self._held is not None and os.path.samestat(os.fstat(self._held.fileno()), path.stat()):
                return
            self.close()
            self._held = path.open("rb")
            lock(self._held.fileno(), wait=True)

    def close(self) -> None:
        """Let it go."""
        if self._held is not None:
            self._held.close()
            self._held = None
