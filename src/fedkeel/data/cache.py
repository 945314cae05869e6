"""The folder that data sets are kept in: `$FEDKEEL_DATA`, or `~/.cache/fedkeel`.

A data set appears in it by one rename, after its checksums were verified. A stamp beside its files records
their sizes and times, so that later loads need not read them twice. Files that a user put there have no
stamp: they are verified and stamped at their first use.
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

from fedkeel.data.sources.layout import Found, Layout, find
from fedkeel.data.sources.packages import Source
from fedkeel.errors import InputError

_STAMP = ".verified.json"


def cache_folder() -> Path:
    """Where data sets are kept."""
    given = os.environ.get("FEDKEEL_DATA") or "~/.cache/fedkeel"
    try:
        return Path(given).expanduser()
    except RuntimeError as error:  # of a user who has no home
        raise InputError(f"FEDKEEL_DATA: {given!r} is not accepted ({error}); accepted: a folder") from None


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
    try:
        with _locked(root):
            already = find(root, layouts)  # another process may have been faster
            return already or _fetch_from_first(root, layouts, sources)
    except OSError as error:
        raise InputError(f"{root.parent}: cannot hold data sets ({error}); set FEDKEEL_DATA") from error


def missing(root: Path, layouts: Sequence[Layout], reason: str) -> InputError:
    """The error for a data set that is not there, which says what to put where."""
    forms = "; or ".join(str(layout) for layout in layouts)
    return InputError(f"{root.name}: not in the cache, and {reason}; put into {root}, gzipped or not: {forms}")


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


def _fetch_from_first(root: Path, layouts: Sequence[Layout], sources: Sequence[Source]) -> Found:
    failures = []
    for source in sources:
        try:
            return _fetch_from(source, root, layouts)
        except (InputError, OSError) as error:
            failures.append(f"{source} ({error})")
    tried = f"no source delivered it: {', '.join(failures)}" if failures else "no source provides it"
    raise missing(root, layouts, tried)


def _fetch_from(source: Source, root: Path, layouts: Sequence[Layout]) -> Found:
    """Fetches into a folder beside `root`, verifies, and only then renames."""
    with tempfile.TemporaryDirectory(
        prefix=f".{root.name}.", suffix=".part", dir=root.parent, ignore_cleanup_errors=True
    ) as scratch:
        work, into = Path(scratch, "work"), Path(scratch, "into")
        work.mkdir()
        into.mkdir()
        source.fetch(work, into)
        staged = find(into, layouts)
        if staged is None:
            raise InputError("it delivered an incomplete data set")
        staged.layout.verify(staged.folder)
        _write_stamp(staged)
        _publish(into, root)
    return Found(staged.layout, root)


def _publish(staged: Path, root: Path) -> None:
    """Renames the folder; where an incomplete one stands, replaces its files one by one."""
    for path in (*staged.iterdir(), staged):
        _sync(path)
    try:
        os.rename(staged, root)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        for path in staged.iterdir():
            os.replace(path, root / path.name)
    _sync(root.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
