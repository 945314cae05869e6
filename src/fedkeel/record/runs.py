"""Reading run folders back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any

from fedkeel.config import yamltext
from fedkeel.config.files import open_file, reason
from fedkeel.config.usercode import short
from fedkeel.errors import InputError, label, shown
from fedkeel.record import measured, schema
from fedkeel.record.measured import ACCURACY, LOSS, Measured
from fedkeel.record.places import DEPLOYMENT

COUNTS = ("client", "round", "staleness", "version")
SECONDS = ("dispatched", "began", "asked", "merged", "resumed", "finished", "arrived", "ended")
BOUNDS = {**dict.fromkeys(COUNTS, (0, 1e15)), **dict.fromkeys(SECONDS, (0, 1e30)), "weight": (-1e30, 1e30)}
"""Numbers of a job's row, and bounds that no run reaches and every figure can draw."""


@dataclass(frozen=True)
class RunRecord:
    """A run folder's experiment and history."""

    path: Path
    experiment: dict[str, Any]
    history: list[dict[str, Any]]

    @classmethod
    def read(cls, path: str | Path) -> RunRecord:
        """Read `experiment.yaml` and `history.jsonl`; a run that is still going on, or was killed, is fine."""
        record = cls.begun(path)
        if not record.history:
            raise InputError(f"{record._named}: there is no evaluation yet; wait for the first one")
        return record

    @classmethod
    def begun(cls, path: str | Path) -> RunRecord:
        """The same, also of a run that has no evaluation yet."""
        folder = Path(path)
        schema.check(folder)
        try:
            experiment = yamltext.read(folder / schema.EXPERIMENT)
        except InputError as error:
            if not (folder / schema.EXPERIMENT).exists():
                what = "holds no run" if folder.exists() else "does not exist"
                raise InputError(
                    f"run folder {label(str(folder))} {what}; name a folder that fedkeel run has made"
                ) from None
            raise InputError(
                f"run folder {label(str(folder))}: {error}; name a folder that fedkeel run has made"
            ) from None
        record = cls(folder, experiment, [])
        record.history.extend(record._rows("history.jsonl"))
        return record

    def arrivals(self) -> Iterator[dict[str, Any]]:
        """The rows of `clients.jsonl`, one by one."""
        yield from self._rows("clients.jsonl")

    def rounds(self) -> Iterator[dict[str, Any]]:
        """The rows of `rounds.jsonl`; older runs have none."""
        if (self.path / "rounds.jsonl").exists():
            yield from self._rows("rounds.jsonl")

    def unfinished(self) -> Iterator[dict[str, Any]]:
        """The rows of `unfinished.jsonl`, jobs that never arrived; older runs have none."""
        if (self.path / "unfinished.jsonl").exists():
            yield from self._rows("unfinished.jsonl")

    def refused(self) -> Iterator[dict[str, Any]]:
        """The rows of `refused.jsonl`, uploads that the gate did not let in; older runs have none."""
        if (self.path / "refused.jsonl").exists():
            yield from self._rows("refused.jsonl")

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Row by row; a last line that was cut short, as a kill leaves it, is none."""
        try:
            with open_file(self.path / name) as file:
                for number, line in enumerate(file, 1):
                    row = _parsed(line)
                    if row is None and not line.endswith(b"\n"):
                        return
                    what = "it is no row" if row is None else _wrong(row)
                    if row is None or what:
                        raise self._damaged(name, f"line {number}: {what}")
                    yield row
        except OSError as error:
            raise InputError(
                f"{self._named}: {name} cannot be read ({reason(error)}); name a folder that fedkeel run has made"
            ) from None

    @contextmanager
    def told_if_damaged(self, name: str) -> Iterator[None]:
        """Whatever a row of that file lacks while it is looked at is told as damage of the file."""
        try:
            yield
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, IndexError, OverflowError, ValueError) as error:
            raise self._damaged(name, f"{type(error).__name__}: {label(str(error))}") from None

    @cached_property
    def metrics(self) -> tuple[Measured, ...]:
        """By what the run is judged; the first counts most. Runs of earlier versions have only an accuracy."""
        told: Any = None
        try:
            with open_file(self.path / schema.RUN) as file:
                told = json.loads(file.read(1_000_000))
        except (OSError, ValueError, RecursionError):  # no such file, or none that says anything
            told = None
        rows = told.get(measured.METRICS) if isinstance(told, dict) else None
        if rows is None:
            return measured.declared(self.experiment.get("metrics")) or (ACCURACY,)
        with self.told_if_damaged(schema.RUN):
            return measured.read(rows)

    def metric(self, name: str | None = None) -> Measured:
        """One of them by its name, or the loss; by default the first."""
        if name is None:
            return self.metrics[0]
        found = next((each for each in (*self.metrics, LOSS) if each.name == name), None)
        if found is None:
            names = ", ".join(each.name for each in (*self.metrics, LOSS))
            raise InputError(f"metric: {shown(name)} was not measured in {self._named}; choose one of {names}")
        return found

    @property
    def validated(self) -> bool:
        """Whether it was tested on a validation set, too."""
        return bool(self.history) and isinstance(self.history[-1].get("validation"), dict)

    def tuned(self, name: str) -> list[float]:
        """One value of every row, from the validation set where there is one."""
        return self.column(name, "validation" if self.validated else None)

    def column(self, name: str, part: str | None = None) -> list[float]:
        """One value of every row, or of a part of it; NaN where there is none, as with a metric that is not defined."""
        with self.told_if_damaged("history.jsonl"):
            rows = self.history if part is None else [row.get(part) or {} for row in self.history]
            values = [row.get(name) for row in rows]
        for number, value in enumerate(values, 1):
            if value is not None and not _is_number(value, -1e30, 1e30):
                raise self._damaged("history.jsonl", f"line {number}, {name}: {shown(value)} is no number")
        return [nan if value is None else float(value) for value in values]

    @property
    def label(self) -> str:
        """A few words for a legend."""
        e = self.experiment
        try:
            method = {"client": None, "server": None, **e["algorithm"]}
            halves = [short(str(method[side] or method["name"])) for side in ("client", "server")]
            algorithm = "+".join(halves if method["client"] or method["server"] else halves[:1])
            real = (self.path / DEPLOYMENT).exists()
            dealt = f"{e['clients']} sites" if real else short(str(e["partition"]["kind"]))
            words = e.get("name") or f"{algorithm}, {dealt}, seed {e['seed']}"
        except (KeyError, TypeError) as error:
            raise self._damaged("experiment.yaml", f"{type(error).__name__}: {label(str(error))}") from None
        return label(words)

    @property
    def _named(self) -> str:
        return f"run folder {label(str(self.path))}"

    def _damaged(self, name: str, what: str) -> InputError:
        return InputError(
            f"{self._named}: {name} is damaged ({what}); use a copy of the folder, or run the experiment again"
        )


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _wrong(row: dict[str, Any]) -> str | None:
    """What is wrong with the numbers of a job's row, if something is."""
    for name, bounds in BOUNDS.items():
        value = row.get(name)
        if value is not None and not (_is_number(value, *bounds) and (name not in COUNTS or isinstance(value, int))):
            return f"{name}: {shown(value)} is no number of a run"
    return None


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most  # NaN is not
