"""The folders that are watched: what they hold now, and a cheap way to tell that something changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedkeel.errors import InputError, label
from fedkeel.record.durable import PARTIAL
from fedkeel.record.folder import begun, complete, worked_on
from fedkeel.record.rows import KINDS
from fedkeel.record.schema import EXPERIMENT, SUMMARY
from fedkeel.study.adhoc import gather
from fedkeel.study.kept import PLAN
from fedkeel.study.plan import Measure
from fedkeel.study.results import Listed, Results, results
from fedkeel.study.space import SEARCH, TRIALS
from fedkeel.study.store import EXECUTORS, FAILED, RUNS, is_comparison

_STUDY = (EXECUTORS, SEARCH, TRIALS)
EARLY = (
    {f"{name}.jsonl" for name in KINDS}
    | {f"{name}{PARTIAL}" for name in (EXPERIMENT, PLAN, *_STUDY)}
    | {RUNS, FAILED, *_STUDY}
)
"""What may be in a folder before the file that makes it one of a run or a comparison."""
FILES = ("history.jsonl", SUMMARY, EXPERIMENT)
Mark = tuple[tuple[str, int, int], ...]
"""Of every file: its path, its size, and when it was written; of every run: whether a process works on it."""


@dataclass(frozen=True)
class Sources:
    """Run folders or comparisons; those that are not there yet may come later."""

    paths: tuple[Path, ...]

    def check(self) -> None:
        """Refuse what is neither a run nor a comparison, and will never be one."""
        if not self.paths:
            raise InputError("watch: no folder is given; name run folders or a comparison")
        for path in self.paths:
            if path.exists() and not path.is_dir():
                raise InputError(f"watch: {label(str(path))} is a file; name the folder of a run or a comparison")
        for path in self.waiting:
            if path.is_dir() and not (_names(path) <= EARLY):
                raise InputError(
                    f"watch: {label(str(path))} holds neither a run nor a comparison; name a folder made by "
                    "fedkeel run or fedkeel compare, or an empty one in which a run will begin"
                )

    @property
    def waiting(self) -> list[Path]:
        """Those that hold neither a run nor a comparison yet."""
        return [path for path in self.paths if not (begun(path) or is_comparison(path))]

    def read(self) -> Results:
        """What the folders hold; runs that are still to come are listed as such."""
        missing = self.waiting
        there = [path for path in self.paths if path not in missing]
        if not missing:
            return gather(self.paths)
        listed = [Listed(label(path.name), "", label(path.name), 0, path) for path in missing]
        empty = results(", ".join(each.name for each in listed), listed, Measure())
        notes = tuple(f"no run has begun in {label(str(path))} yet; this page waits for it" for path in missing)
        known = gather(there) if there else empty
        outcomes = (*known.outcomes, *empty.outcomes) if there else known.outcomes
        return replace(known, outcomes=outcomes, notes=(*known.notes, *notes))

    def mark(self, folders: Sequence[Path]) -> Mark:
        """Differs before and after a row, an end, a kill or a failure of the runs in these folders, or a new plan."""
        files = tuple((str(path), *_stamp(path)) for path in self._files(folders))
        return files + tuple((str(path), 0, worked_on(path)) for path in folders if begun(path) and not complete(path))

    def _files(self, folders: Sequence[Path]) -> Iterator[Path]:
        for path in self.paths:
            yield path
            yield path / PLAN
            yield path / EXPERIMENT
            yield from (path / FAILED / name for name in sorted(_names(path / FAILED)))
        for folder in folders:
            yield from (folder / name for name in FILES)


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (-1, -1)
    return found.st_size, found.st_mtime_ns
