"""Reading run folders back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import yaml

from fedkeel.errors import InputError


@dataclass(frozen=True)
class RunRecord:
    """A run folder's experiment and history."""

    path: Path
    experiment: dict[str, Any]
    history: list[dict[str, Any]]

    @classmethod
    def read(cls, path: str | Path) -> RunRecord:
        """Read `experiment.yaml` and `history.jsonl`; a run that is still going on is fine."""
        folder = Path(path)
        try:
            experiment = yaml.safe_load((folder / "experiment.yaml").read_text(encoding="utf-8"))
            lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
            history = [json.loads(line) for line in lines]
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InputError(
                f"run folder {folder}: cannot be read ({error}); accepted: a folder made by fedkeel run"
            ) from None
        if not isinstance(experiment, dict) or not all(isinstance(row, dict) for row in history):
            raise InputError(f"run folder {folder}: damaged; accepted: a folder made by fedkeel run")
        if not history:
            raise InputError(f"run folder {folder}: no evaluation yet; accepted: a run with at least one")
        return cls(folder, experiment, history)

    def arrivals(self) -> Iterator[dict[str, Any]]:
        """The rows of `clients.jsonl`, one by one."""
        yield from self._rows("clients.jsonl")

    def unfinished(self) -> Iterator[dict[str, Any]]:
        """The rows of `unfinished.jsonl`, jobs that never arrived; older runs have none."""
        if (self.path / "unfinished.jsonl").exists():
            yield from self._rows("unfinished.jsonl")

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            with (self.path / name).open(encoding="utf-8") as file:
                yield from map(json.loads, file)
        except (OSError, ValueError) as error:
            raise InputError(
                f"run folder {self.path}: {name} cannot be read ({error}); accepted: a folder made by fedkeel run"
            ) from None

    @contextmanager
    def told_if_damaged(self, name: str) -> Iterator[None]:
        """Whatever a row of that file lacks while it is looked at is told as damage of the file."""
        try:
            yield
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(
                f"run folder {self.path}: {name} is damaged ({type(error).__name__}: {error}); "
                "accepted: a folder made by fedkeel run"
            ) from None

    def column(self, name: str) -> list[float]:
        """One value of every row; NaN where there is none, as with the training loss when nobody answered."""
        return [row.get(name, nan) for row in self.history]

    @property
    def label(self) -> str:
        """A few words for a legend."""
        e = self.experiment
        return e["name"] or f"{e['algorithm']['name']}, {e['partition']['kind']}, seed {e['seed']}"
