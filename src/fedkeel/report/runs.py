"""Reading run folders back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
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
        try:
            with (self.path / "clients.jsonl").open(encoding="utf-8") as file:
                yield from map(json.loads, file)
        except (OSError, ValueError) as error:
            raise InputError(
                f"run folder {self.path}: cannot be read ({error}); accepted: a folder made by fedkeel run"
            ) from None

    def column(self, name: str) -> list[float]:
        """One value of every row."""
        return [row[name] for row in self.history]

    @property
    def label(self) -> str:
        """A few words for a legend."""
        e = self.experiment
        return e["name"] or f"{e['algorithm']['name']}, {e['partition']['kind']}, seed {e['seed']}"
