"""Folders of runs as they are found: whether one was begun, is complete, is in use, or can be begun."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from fedkeel.errors import InputError, MishapError
from fedkeel.record import schema
from fedkeel.record.durable import PARTIAL
from fedkeel.record.lock import is_held
from fedkeel.record.rows import KINDS
from fedkeel.record.schema import CLIENT_METRICS, EXPERIMENT, LABELS, SUMMARY

ROWS = tuple(KINDS)
CHECKPOINTS = "checkpoint"
"""The folder of checkpoints in that of a run."""
DEPLOYMENT = "deployment.json"
"""In the folder of a run on real machines: its number, and which node each site is."""
START_WEIGHTS = "init"
"""The file, without its ending, of weights from elsewhere that a run started from."""


class FolderError(MishapError, InputError):
    """The folder cannot be used, whatever the experiment is."""


class TakenError(FolderError):
    """It holds something already."""


def begun(path: Path) -> bool:
    """Whether a run was begun there."""
    return (path / EXPERIMENT).is_file()


def complete(path: Path) -> bool:
    """Whether a run was finished there."""
    return (path / SUMMARY).is_file()


def worked_on(path: Path) -> bool:
    """Whether a process works on the run that was begun there."""
    return is_held(path / "history.jsonl")


def resumption(path: Path) -> str:
    """The command that resumes the run in a folder."""
    folder = shlex.quote(str(path))
    if (path / DEPLOYMENT).exists():
        return f"fedkeel deploy server APP --out {folder}, or fedkeel deploy local APP --out {folder}"
    return f"fedkeel run --resume {folder}"


def repetition(path: Path) -> str:
    """The command that does the same again in another folder."""
    if (path / DEPLOYMENT).exists():
        return "fedkeel deploy server APP --out NEW-FOLDER"
    return f"fedkeel run {shlex.quote(str(path / EXPERIMENT))}"


def check_resumable(path: Path, changed: bool = False, deployed: bool = False) -> None:
    """Refuse a folder without a run that can go on; a complete one can if its settings have changed.

    A simulation does not go on with a run on real machines.
    """
    if not begun(path):
        raise InputError(f"resume: {path} holds no run; name a folder that fedkeel run has made")
    if (path / DEPLOYMENT).exists() and not deployed:
        raise InputError(f"resume: the run in {path} is one on real machines; resume it with {resumption(path)}")
    schema.check(path)
    if complete(path) and not changed:
        raise InputError(f"resume: the run in {path} is complete; to extend it, give it more rounds (rounds=...)")


def check_free(path: Path) -> None:
    """Refuse a folder that holds something, so that no finished run is overwritten; or one that cannot be written."""
    try:
        if path.exists() and not path.is_dir():
            raise FolderError(f"out: {path} is a file; name a new or empty folder")
        if path.is_dir() and any(not _is_left_over(inside) for inside in path.iterdir()):
            raise taken(path)
        check_space(path, 0)
    except OSError as error:
        raise FolderError(f"out: {path} cannot be a folder ({error.strerror}); name another one") from None


def check_space(path: Path, needed: int) -> None:
    """Refuse a folder that cannot be written, or where so many bytes do not fit."""
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise FolderError(f"out: {path} cannot be written (permission denied); name another folder")
    free = shutil.disk_usage(there).free
    if free < needed:
        raise FolderError(
            f"out: {path} has room for {free / 1e6:.3g} MB, and this run needs {needed / 1e6:.3g} MB for its model and "
            "checkpoints; free some space or name a folder on another disk"
        )


def _is_left_over(path: Path) -> bool:
    """Whether this is of a run that was killed before it began."""
    name, kind = path.name, path.suffix
    return name in (EXPERIMENT + PARTIAL, f"{START_WEIGHTS}.safetensors", f"{START_WEIGHTS}.safetensors{PARTIAL}") or (
        name.removesuffix(kind) in ROWS and kind == ".jsonl" and not path.stat().st_size
    )


def is_partial(path: Path) -> bool:
    """Whether this was being written when a run was killed."""
    name = path.name.removesuffix(PARTIAL)
    return name != path.name and (
        name in (EXPERIMENT, LABELS, SUMMARY, CLIENT_METRICS) or name.endswith(".safetensors")
    )


def taken(path: Path) -> TakenError:
    """The error for a folder that is not empty."""
    resume = f"; to go on with the run in it: {resumption(path)}" if begun(path) and not complete(path) else ""
    return TakenError(f"out: {path} is not empty; name a new or empty folder{resume}")
