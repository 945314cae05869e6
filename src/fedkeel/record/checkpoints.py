"""A run's checkpoints: one folder each, written whole or not at all, and verified before they are used."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import fedkeel
from fedkeel.errors import FedkeelError, MishapError, shown
from fedkeel.record import schema
from fedkeel.record.codec import DecodeError, Tensors, decode, encode
from fedkeel.record.durable import sync_folder, synced, write_tensors

FORMAT = 5
"""The version of what a checkpoint holds; others cannot be resumed."""
STATE, TENSORS = "state.json", "tensors.safetensors"

_NEW, _OLD, _GONE = "new", "old", "gone"
"""Hidden folders: one being written; a complete one that is being replaced; one that is being removed."""
_NAME = re.compile(r"round-(0|[1-9][0-9]*)")
_HIDDEN = re.compile(rf"\.(?P<name>{_NAME.pattern})\.(?P<stage>{_NEW}|{_OLD}|{_GONE})")
_HEAD = b'{"sha256": "%s",\n'
_HEAD_BYTES = len(_HEAD % (b"0" * 64))


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read."""

    number: int
    state: Any
    path: Path
    passed_over: tuple[str, ...] = ()
    """A sentence for each newer one that could not be used."""
    notes: tuple[str, ...] = ()
    """What a user should know of it besides."""


@dataclass(frozen=True)
class Held:
    """A state in memory that can still be written when the run has gone on.

    Tensors are referred to, not copied: a run replaces them and never changes them in place.
    """

    number: int
    plain: Any
    tensors: Tensors
    versions: tuple[int, ...]
    """How often each tensor had been changed in place."""

    @property
    def intact(self) -> bool:
        """Whether all tensors are as they were."""
        return _versions(self.tensors) == self.versions


class VersionError(MishapError):
    """All checkpoints are from other versions of fedkeel."""

    def __init__(self, message: str, earlier: bool) -> None:
        super().__init__(message)
        self.earlier = earlier


class _UnusableError(Exception):
    """Why a checkpoint cannot be used."""


class _FormatError(_UnusableError):
    """It is from another version."""

    def __init__(self, found: object, version: object) -> None:
        self.later = type(found) is int and found > FORMAT
        which = schema.later(version) if self.later else "an earlier version of fedkeel"
        super().__init__(f"it was written by {which} (its format is {shown(found)}, not {FORMAT})")


class Checkpoints:
    """The folder of a run's checkpoints, `round-<number>` each; the newest `keep` are kept.

    Only one process may write into it. Whenever it is killed, the newest complete checkpoint can be loaded.
    """

    def __init__(self, folder: Path, identity: str | None, classes: Sequence[type], keep: int = 2) -> None:
        """Without an `identity`, for reading: those of any model, data and devices."""
        self.folder = folder
        self.identity = identity
        self.keep = keep
        self._classes = tuple(classes)
        self._unusable: set[Path] = set()
        """Passed over when the state was loaded: they go when there is a new one."""

    def save(self, number: int, state: Any) -> Path:
        """Write a checkpoint, then remove what is not needed any more."""
        return self._save(number, *self._encode(state))

    def hold(self, number: int, state: Any) -> Held:
        """The state as it is now, to be written later if need be; one that cannot be written is refused."""
        plain, tensors = self._encode(state, copy_arrays=True)
        return Held(number, plain, tensors, _versions(tensors))

    def save_held(self, held: Held) -> None:
        """Write what is held, unless that was done before, or somebody changed its tensors in place."""
        path = self.folder / f"round-{held.number}"
        if (path in self._unusable or not path.exists()) and held.intact:
            self._save(held.number, held.plain, held.tensors)

    def _save(self, number: int, plain: Any, tensors: Tensors) -> Path:
        path = self.folder / f"round-{number}"
        before = self._all()
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                sync_folder(self.folder.parent)
            self.clean()
            self._write(path, number, plain, tensors)
        except Exception as error:
            with suppress(OSError):
                self.clean()
            if not isinstance(error, OSError):
                raise
            stands = [other.name for other in self._all() if other in before and other not in self._unusable]
            raise MishapError(
                f"checkpoint {path} could not be written ({error.strerror or error}); "
                + (f"the last one is {stands[0]}" if stands else "there is none yet")
            ) from error
        self._unusable.discard(path)
        with suppress(OSError):  # the new one is there; the next time tries again
            self._prune(number)
        return path

    @property
    def newest(self) -> Path | None:
        """The last one that is of any use, if there is one."""
        return next((path for path in self._all() if path not in self._unusable), None)

    def _encode(self, state: Any, copy_arrays: bool = False) -> tuple[Any, Tensors]:
        try:
            return encode(state, self._classes, copy_arrays)
        except TypeError as error:
            raise FedkeelError(
                f"the state cannot be written to a checkpoint: {error}; what a method remembers, sends or keeps must "
                "be tensors, numbers, strings, or lists and dictionaries of these"
            ) from error

    def load(
        self,
        objection: Callable[[Any], str | None] = lambda _: None,
        outdated: Callable[[Any], bool] = lambda _: False,
    ) -> Loaded | None:
        """The newest usable checkpoint; None where there is none at all.

        `objection` says why a state cannot be used, if there is a reason. One that is `outdated` is passed over without
        a word.
        """
        passed_over: list[str] = []
        formats: list[_FormatError] = []
        self._unusable = set()
        for path, number in self._candidates():
            try:
                state, notes = self._read(path, number)
                if reason := objection(state):
                    raise _UnusableError(reason)
                if outdated(state):
                    self._unusable.add(path)
                    continue
            except _UnusableError as error:
                passed_over.append(f"checkpoint {path} cannot be used: {error}")
                self._unusable.add(path)
                formats += [error] if isinstance(error, _FormatError) else []
            else:
                return Loaded(number, state, path, tuple(passed_over), notes)
        if formats and len(formats) == len(passed_over):
            raise VersionError(passed_over[0], earlier=not any(error.later for error in formats))
        if passed_over:
            raise MishapError(f"there is no usable checkpoint: {'; '.join(passed_over)}")
        return None

    def clean(self) -> None:
        """Remove what a kill left half-written or half-removed, and put back what it left half-replaced."""
        for path in self._listed():
            if hidden := _HIDDEN.fullmatch(path.name):
                place = self.folder / hidden["name"]
                if hidden["stage"] == _OLD and not place.exists():
                    os.rename(path, place)
                else:
                    self._remove(path)

    def _listed(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except FileNotFoundError:
            return []

    def _all(self) -> list[Path]:
        """Those that have their names, newest first."""
        with suppress(OSError):
            found = {path: int(name[1]) for path in self._listed() if (name := _NAME.fullmatch(path.name))}
            return sorted(found, key=found.__getitem__, reverse=True)
        return []

    def _candidates(self) -> list[tuple[Path, int]]:
        """Newest first; one that was being replaced when the process was killed comes behind what replaced it."""
        try:
            listed = self._listed()
        except OSError as error:
            raise MishapError(f"checkpoints in {self.folder} cannot be read ({error.strerror})") from None
        found = []
        for path in listed:
            if name := _NAME.fullmatch(path.name):
                found.append((int(name[1]), 1, path))
            elif (hidden := _HIDDEN.fullmatch(path.name)) and hidden["stage"] == _OLD:
                found.append((int(hidden["name"].removeprefix("round-")), 0, path))
        return [(path, number) for number, _, path in sorted(found, reverse=True)]

    def _write(self, path: Path, number: int, plain: Any, tensors: Tensors) -> None:
        new, old = self._hidden(path, _NEW), self._hidden(path, _OLD)
        new.mkdir()
        size, digest = write_tensors(new / TENSORS, tensors)
        body = {
            "format": FORMAT,
            "number": number,
            "identity": self.identity,
            "fedkeel": fedkeel.__version__,
            "torch": torch.__version__,
            "tensors": {"bytes": size, "sha256": digest},
            "state": plain,
        }
        text = json.dumps(body, ensure_ascii=False)[1:].encode("utf-8", "surrogatepass")
        with synced(new / STATE) as file:
            file.write(_HEAD % sha256(text).hexdigest().encode())
            file.write(text)
        sync_folder(new)
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(new, path)
        sync_folder(self.folder)

    def _prune(self, number: int) -> None:
        """Remove what was found to be unusable, and all but the newest `keep` up to this one."""
        self.clean()
        good = [path for path in self._all() if path not in self._unusable]
        past = [path for path in good if int(path.name.removeprefix("round-")) <= number]
        for path in [*past[max(self.keep, 1) :], *self._unusable]:
            if os.path.lexists(path):
                self._remove(path)
        self._unusable = set()

    def _remove(self, path: Path) -> None:
        """Under another name first: what is half-removed must not be taken for a damaged checkpoint."""
        gone = path
        if not path.name.endswith(f".{_GONE}"):
            gone = self._hidden(path, _GONE)
            if gone.exists():
                _delete(gone)
            os.rename(path, gone)
        _delete(gone)

    def _hidden(self, path: Path, stage: str) -> Path:
        hidden = _HIDDEN.fullmatch(path.name)
        return self.folder / f".{hidden['name'] if hidden else path.name}.{stage}"

    def _read(self, path: Path, number: int) -> tuple[Any, tuple[str, ...]]:
        try:
            body = _read_state(path / STATE)
            self._check(body, number)
            _check_tensors(path / TENSORS, body["tensors"])
            state = decode(body["state"], load_file(path / TENSORS), self._classes)
        except _UnusableError:
            raise
        except FileNotFoundError as error:
            raise _UnusableError(f"{Path(error.filename or TENSORS).name} is missing") from None
        except OSError as error:
            raise _UnusableError(f"it cannot be read ({error.strerror or error})") from None
        except MemoryError:
            raise
        except DecodeError as error:
            raise _UnusableError(str(error)) from None
        except Exception as error:  # whatever else is wrong with it, an older one may do
            raise _UnusableError(f"its contents make no sense ({type(error).__name__}: {error})") from error
        here = {"fedkeel": fedkeel.__version__, "torch": str(torch.__version__)}
        return state, tuple(
            f"checkpoint {path} was written by {name} {body.get(name)}; this is {name} {version}"
            for name, version in here.items()
            if body.get(name) != version
        )

    def _check(self, body: dict[str, Any], number: int) -> None:
        if body.get("format") != FORMAT:
            raise _FormatError(body.get("format"), body.get("fedkeel"))
        if self.identity is not None and body.get("identity") != self.identity:
            raise _UnusableError("it belongs to another model, other data or other devices")
        if body.get("number") != number:
            raise _UnusableError(f"it is of round {body.get('number')!r}, not {number}")


def _versions(tensors: Tensors) -> tuple[int, ...]:
    return tuple(0 if t.is_inference() else t._version for rows in tensors.values() for t in rows)


def _read_state(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    head, text = raw[:_HEAD_BYTES], raw[_HEAD_BYTES:]
    if head != _HEAD % sha256(text).hexdigest().encode():
        raise _UnusableError(f"{STATE} is damaged ({'its checksum differs' if raw else 'it is empty'})")
    body: dict[str, Any] = json.loads("{" + text.decode("utf-8", "surrogatepass"))
    return body


def _check_tensors(path: Path, told: dict[str, Any]) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != told["bytes"]:
            raise _UnusableError(f"{TENSORS} is damaged (it has {size} bytes instead of {told['bytes']})")
        if file_digest(file, "sha256").hexdigest() != told["sha256"]:
            raise _UnusableError(f"{TENSORS} is damaged (its checksum differs)")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
