"""Rows of a run that is still going on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from math import inf
from pathlib import Path
from threading import Event
from typing import BinaryIO, TypeVar

from fedkeel.config.files import open_file, reason
from fedkeel.errors import InputError, label, shown, unknown
from fedkeel.record import schema
from fedkeel.record.recorded import RowError
from fedkeel.record.rows import KINDS, Round, Row

T = TypeVar("T")


def follow(
    path: str | Path,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    timeout: float | None = None,
    poll_seconds: float = 0.5,
    stop: Event | None = None,
) -> Iterator[Row]:
    """Yield the rows of a run as they are written, until it is complete; all at once if it is.

    Rows come round by round: arrivals, unfinished jobs, refused uploads, the round itself, its evaluation. What came
    after the last round comes last. `kinds` chooses among them by the names of their files. If the run is stopped or
    killed, this waits for somebody to resume it. Rows that are then written again are not yielded again. After
    `timeout` seconds without a new row, it raises a TimeoutError. With a `timeout`, it waits as long for a run that has
    not begun yet. When another thread sets `stop`, no more rows come.
    """
    chosen = frozenset([kinds] if isinstance(kinds, str) else kinds)
    for kind in sorted(chosen, key=str):
        if kind not in KINDS:
            raise unknown("kinds", kind, KINDS)
    for name, value in (("timeout", timeout), ("poll_seconds", poll_seconds)):
        if value is not None and not (isinstance(value, int | float) and 0 < value <= 1e6):
            raise InputError(f"{name} must be a number of seconds from 0 to a million; got {shown(value)}")
    path = Path(path)
    if _begun(path):
        schema.check(path)
    elif timeout is None or (path.exists() and not path.is_dir()):
        wait = ", or give a timeout to wait for a run to begin" if timeout is None else ""
        raise InputError(f"follow: {label(str(path))} holds no run; name a folder that fedkeel run has made{wait}")
    return _rows(path, chosen, _Waiting(timeout, poll_seconds, stop or Event()))


def _begun(path: Path) -> bool:
    return (path / schema.EXPERIMENT).is_file()


def _rows(path: Path, kinds: frozenset[str], waiting: _Waiting) -> Iterator[Row]:
    waiting.begin()
    while not _begun(path):
        if waiting.stopped:
            return
        waiting.sleep(f"no run has begun in {path}")
    schema.check(path)
    waiting.begin()
    yield from _Follower(path, kinds).rows(waiting)


class _Waiting:
    """Sleeps between two looks, until a time is over."""

    def __init__(self, timeout: float | None, poll_seconds: float, stop: Event) -> None:
        self._timeout, self._poll_seconds, self._stop = timeout, poll_seconds, stop
        self.begin()

    @property
    def stopped(self) -> bool:
        """Whether nobody waits any more."""
        return self._stop.is_set()

    def begin(self) -> None:
        """Count the time from now."""
        self._end = inf if self._timeout is None else time.monotonic() + self._timeout

    def sleep(self, said: str) -> None:
        """Wait a little; if the time is over, raise an error that says this."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"follow: {said} for {self._timeout:g} s")
        self._stop.wait(min(self._poll_seconds, left))


class _Follower:
    """Goes by `rounds.jsonl`, whose rows say how many rows of the other files belong to a round.

    A round's row is written after these and before its evaluation. Rows behind the last round are yielded only when the
    run is complete: a run that fails writes down the jobs it leaves, and they are cut off again when it is resumed.

    A run that is resumed cuts off its files, `rounds.jsonl` first, then replaces `run.json`, then writes rows again. So
    what is read belongs together if `run.json` is the same file before and after, and a round's own row is still there
    when the other files have been read.
    """

    def __init__(self, path: Path, kinds: frozenset[str]) -> None:
        self._path, self._kinds = path, kinds
        self._files = {kind: _Lines(path / f"{kind}.jsonl", kind) for kind in KINDS}
        self._last = 0
        """The last round that was yielded."""
        self._damage = ""
        """What was wrong when we last looked, if anything was."""

    def rows(self, waiting: _Waiting) -> Iterator[Row]:
        """All rows, as they come."""
        while not waiting.stopped:
            complete = (self._path / schema.SUMMARY).exists()  # before the rows: then none is still to come
            found = self._look(complete)
            if found:
                yield from (row for kind, row in found if kind in self._kinds)
                waiting.begin()
            elif complete:
                return
            else:
                waiting.sleep(f"the run in {self._path} is not complete, and there was no new row")

    def _look(self, complete: bool) -> list[tuple[str, Row]]:
        """What is next, if it is there: the rows of a round, an evaluation, or at the end the rest."""
        attempt = self._attempt()
        try:
            found = self._round(complete) or self._evaluation() or (self._rest() if complete else {})
        except RowError as error:
            # A file that is cut off and written again may look wrong in between.
            if complete or str(error) == self._damage:
                raise InputError(
                    f"run folder {label(str(self._path))}: {error}; use a copy of the folder, or run the "
                    "experiment again"
                ) from None
            self._damage = str(error)
            return []
        self._damage = ""
        return self._taken(found) if complete or self._attempt() == attempt else []

    def _attempt(self) -> tuple[int, int] | None:
        """Differs before and after the run is resumed."""
        try:
            found = (self._path / schema.RUN).stat()
        except OSError:  # there is none yet
            return None
        return found.st_ino, found.st_mtime_ns

    def _round(self, complete: bool) -> dict[str, list[Row]]:
        """All rows of the next round, behind the evaluation of the one before."""
        spine = self._files["rounds"]
        rounds = spine.peek(1)
        if not rounds:
            return {}
        told = rounds[0]
        assert isinstance(told, Round)
        pending = self._pending()
        counts = {"clients": told.arrived, "unfinished": told.lost, "refused": told.refused}
        found = {kind: self._files[kind].peek(count) for kind, count in counts.items() if kind in self._kinds}
        short = next((kind for kind, rows in found.items() if len(rows) < counts[kind]), None)
        if short and complete:
            raise RowError(f"{short}.jsonl is damaged (rows of round {told.round} are missing)")
        if short or not spine.unchanged():  # the run is being resumed, and its last rounds come again
            return {}
        return {"history": pending, **found, "rounds": rounds}

    def _evaluation(self) -> dict[str, list[Row]]:
        pending = self._pending()
        return {"history": pending} if pending else {}

    def _pending(self) -> list[Row]:
        """The evaluation of the last round, if it has one that was not yielded yet and is there."""
        found = self._files["history"].peek(1) if "history" in self._kinds else []
        return [row for row in found if row.round <= self._last]

    def _rest(self) -> dict[str, list[Row]]:
        """What came after the last round."""
        kinds = [kind for kind in ("unfinished", "refused") if kind in self._kinds]
        return {kind: self._files[kind].peek(None) for kind in kinds}

    def _taken(self, found: dict[str, list[Row]]) -> list[tuple[str, Row]]:
        """The rows in order; they do not come again."""
        for kind, rows in found.items():
            self._files[kind].take(len(rows))
            self._last = max([self._last, *(row.round for row in rows if kind == "rounds")])
        return [(kind, row) for kind, rows in found.items() for row in rows]


class _Lines:
    """The whole lines of a file, each once, even if the file is cut off and written again in between.

    What is written again are the same rows, but not the same bytes, as real times differ: so lines are counted. Whether
    the file is still the one that was read shows from the last line that was taken.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, KINDS[kind]
        self._count = self._offset = 0
        """How many lines were taken, and where they end."""
        self._line = b""
        """The last of them."""
        self._peeked: list[bytes] = []

    def peek(self, most: int | None) -> list[Row]:
        """The next rows, at most so many; fewer where there are not as many yet."""

        def following(file: BinaryIO) -> list[bytes]:
            return [*islice(takewhile(_is_whole, file), most)] if self._find(file) else []

        self._peeked = self._read(following) or [] if most is None or most > 0 else []
        return [self._row(number, line) for number, line in enumerate(self._peeked, self._count + 1)]

    def take(self, count: int) -> None:
        """The first so many of what was last looked at do not come again."""
        if count:
            self._count += count
            self._offset += sum(map(len, self._peeked[:count]))
            self._line = self._peeked[count - 1]

    def unchanged(self) -> bool:
        """Whether what was last looked at is still there."""

        def same(file: BinaryIO) -> bool:
            file.seek(self._offset)
            return all(file.read(len(line)) == line for line in self._peeked)

        return self._read(same) or False

    def _read(self, read: Callable[[BinaryIO], T]) -> T | None:
        """What is read from the file; nothing if it is not there."""
        try:
            with open_file(self._path) as file:
                return read(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RowError(f"{self._path.name} cannot be read ({reason(error)})") from None

    def _find(self, file: BinaryIO) -> bool:
        """Go to the end of the lines that were taken; False if not all of them have been written again yet."""
        file.seek(self._offset - len(self._line))
        if file.read(len(self._line)) == self._line:
            return True
        file.seek(0)
        offset, line = 0, b""
        for _ in range(self._count):
            line = file.readline()
            if not _is_whole(line):
                return False
            offset += len(line)
        self._offset, self._line = offset, line
        return True

    def _row(self, number: int, line: bytes) -> Row:
        try:
            return self._kind.read(json.loads(line))
        except (ValueError, RecursionError) as error:
            what = str(error) if isinstance(error, RowError) else "it is no row"
            raise RowError(f"{self._path.name} is damaged (line {number}: {what})") from None


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n")
