"""The folder that data sets are kept in: `$FEDKEEL_DATA`, or `~/.cache/fedkeel`.

A data set appears in it by one rename, after its checksums were verified. A stamp beside its files records
their sizes and times, so that later loads need not read them twice. Files that a user put there have no
stamp: they are verified and stamped at their first use. Downloads that are not finished wait in a hidden folder beside
the data set's, where the next attempt resumes them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedkeel.config.files import reason
from fedkeel.data.sources.layout import Found, Layout, find
from fedkeel.data.sources.source import Place, Source, downloads, is_offline, user_mirror
from fedkeel.errors import InputError, MishapError, shown

_STAMP = ".verified.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache_folder() -> Path:
    """Where data sets are kept."""
    given = os.environ.get("FEDKEEL_DATA") or "~/.cache/fedkeel"
    try:
        return Path(given).expanduser()
    except RuntimeError as error:  # of a user who has no home
        raise InputError(f"FEDKEEL_DATA must be a folder; got {shown(given)} ({error})") from None


def verify_if_changed(found: Found) -> None:
    """Verifies a data set unless its files are the ones that were verified before."""
    if _read_stamp(found.folder) != found.state():
        verify(found)


def verify(found: Found) -> None:
    """Compares all checksums of a data set, and stamps it if there were any."""
    if not found.layout.has_checksums:
        return
    try:
        found.layout.verify(found.folder)
    except InputError as error:
        raise InputError(f"{error}; delete this file, then get the data set again") from error
    with suppress(OSError):  # in a read-only cache, every use verifies anew
        _write_stamp(found)


def fetch(root: Path, layouts: Sequence[Layout], sources: Sequence[Source]) -> Found:
    """Puts a data set into the folder `root`, from the first source that can deliver it."""
    mirror = user_mirror()
    try:
        with _locked(root):
            already = find(root, layouts)  # another process may have been faster
            return already or _fetch_from_first(root, layouts, sources, mirror)
    except OSError as error:
        if error.errno in _FULL:
            advice = "free some space, or set FEDKEEL_DATA to a folder on another disk"
            raise MishapError(f"{root.parent}: the disk is full ({reason(error)}); {advice}") from error
        advice = "set FEDKEEL_DATA to a folder that can be written"
        raise InputError(f"{root.parent}: this folder cannot hold data sets ({reason(error)}); {advice}") from error


def missing(root: Path, layouts: Sequence[Layout], sources: Sequence[Source], why: str, first: str) -> InputError:
    """The error for a data set that is not there: what was tried, what to do `first`, and what to put where."""
    archives = [name for source in sources for name in source.archives]
    forms = "; or ".join([*archives, *map(str, layouts)])
    return InputError(
        f"{root.name} is not in the cache, and {why}; {first}, or put its files into {root}, "
        f"or set FEDKEEL_DATA to a folder that has them in {root.name}/ (the files, gzipped or not: {forms})"
    )


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that appears whole or not at all."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(content)
        _sync(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _read_stamp(folder: Path) -> object:
    try:
        return json.loads((folder / _STAMP).read_bytes())
    except (OSError, ValueError):
        return None


def _write_stamp(found: Found) -> None:
    write_atomically(found.folder / _STAMP, json.dumps(found.state()).encode())


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One process at a time fetches a data set; what a killed one left behind is removed."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / f".{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for remains in root.parent.glob(f".{root.name}.*.part"):
            shutil.rmtree(remains, ignore_errors=True)
        yield


def _fetch_from_first(root: Path, layouts: Sequence[Layout], sources: Sequence[Source], mirror: str | None) -> Found:
    offline = is_offline()
    unreachable: dict[str, str] = {}
    failures = []
    for source in sources:
        if offline and source.needs_network(root):
            continue
        try:
            found = _fetch_from(source, root, layouts, mirror, unreachable)
        except (InputError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            failures.append(f"{source} ({error})")
        else:
            shutil.rmtree(downloads(root), ignore_errors=True)
            return found
    with suppress(OSError):  # parts of downloads stay
        downloads(root).rmdir()
    tried = f"no source delivered it: {', '.join(failures)}" if failures else "no source provides it"
    if offline:
        told = tried if failures else "nothing is downloaded"
        why = f"{told} while FEDKEEL_OFFLINE is set"
        raise missing(root, layouts, sources, why, "unset FEDKEEL_OFFLINE")
    raise missing(root, layouts, sources, tried, "set FEDKEEL_MIRROR to the address of a mirror that you can reach")


def _fetch_from(
    source: Source, root: Path, layouts: Sequence[Layout], mirror: str | None, unreachable: dict[str, str]
) -> Found:
    """Fetches into a folder beside `root`, verifies, and only then renames."""
    with tempfile.TemporaryDirectory(
        prefix=f".{root.name}.", suffix=".part", dir=root.parent, ignore_cleanup_errors=True
    ) as scratch:
        work, into = Path(scratch, "work"), Path(scratch, "into")
        work.mkdir()
        into.mkdir()
        source.fetch(Place(root, work, into, mirror, unreachable))
        staged = find(into, layouts)
        if staged is None:
            raise InputError("it delivered an incomplete data set")
        staged.layout.verify(staged.folder)
        _write_stamp(staged)
        _publish(into, root)
    return Found(staged.layout, root)


def _publish(staged: Path, root: Path) -> None:
    """Renames the folder; if there is an incomplete one, replaces its files one by one."""
    for path in (*staged.iterdir(), staged):
        _sync(path)
    if any(path.is_dir() for path in staged.iterdir()):
        os.sync()  # once for tens of thousands of small files
    try:
        os.rename(staged, root)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _merge(staged, root)
    _sync(root.parent)


def _merge(staged: Path, root: Path) -> None:
    """Moves every file to its place below `root`; what else is there stays."""
    for folder, _, names in os.walk(staged):
        target = root / Path(folder).relative_to(staged)
        target.mkdir(exist_ok=True)
        for name in names:
            os.replace(Path(folder, name), target / name)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
