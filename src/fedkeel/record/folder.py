"""The folder of one run: experiment.yaml, four .jsonl files of rows, summary.json, model.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from fedkeel.errors import InputError
from fedkeel.experiment import Experiment
from fedkeel.runtime.progress import RoundEnd

_encode = json.JSONEncoder(allow_nan=False).encode


class TakenError(InputError):
    """The folder holds something already."""


class RunFolder(AbstractContextManager["RunFolder"]):
    """Rows are written as they come; what is written whole is renamed into place."""

    def __init__(self, path: str | Path, experiment: Experiment) -> None:
        self.path = Path(path)
        check_free(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._history: TextIO = (self.path / "history.jsonl").open("x", encoding="utf-8")  # only one can
            self._clients: TextIO = (self.path / "clients.jsonl").open("w", encoding="utf-8")
            self._rounds: TextIO = (self.path / "rounds.jsonl").open("w", encoding="utf-8")
            self._unfinished: TextIO = (self.path / "unfinished.jsonl").open("w", encoding="utf-8")
            self._write("experiment.yaml", experiment.to_yaml())
        except FileExistsError:
            raise _taken(self.path) from None
        except OSError as error:
            raise InputError(f"out: {self.path} cannot be written ({error.strerror})") from None

    @classmethod
    def below(cls, parent: Path, name: str, experiment: Experiment) -> RunFolder:
        """A new folder `parent/name`, with a number behind it where that is taken, even a moment ago."""
        path, number = parent / name, 1
        while True:
            with suppress(TakenError):
                if not path.exists():
                    return cls(path, experiment)
            number += 1
            path = parent / f"{name}-{number}"

    def add(self, end: RoundEnd) -> None:
        """Write down one round."""
        self._clients.writelines(_lines(end.arrivals.columns))
        self._clients.flush()
        self.add_unfinished(end.unfinished)
        self._rounds.write(_line({"round": end.round, "train_loss": end.train_loss, **end.report}))
        self._rounds.flush()
        if end.evaluation is not None:
            self._history.write(
                _line({name: value for name, value in vars(end.evaluation).items() if value is not None})
            )
            self._history.flush()

    def add_unfinished(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Write down jobs that did not arrive."""
        self._unfinished.writelines(map(_line, jobs))
        self._unfinished.flush()

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors to `name.safetensors`."""
        partial = self.path / f"{name}.safetensors.partial"
        save_file({key: tensor.clone().contiguous() for key, tensor in tensors.items()}, partial)  # tied weights too
        os.replace(partial, self.path / f"{name}.safetensors")

    def add_client_accuracies(self, columns: Mapping[str, NDArray[np.float64]]) -> None:
        """Write `client_accuracy.jsonl`, one row a client; null where one could not be tested."""
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        known = ([None if value != value else value for value in row] for row in rows)
        lines = (_line({"client": client, **dict(zip(columns, row, strict=True))}) for client, row in enumerate(known))
        self._write("client_accuracy.jsonl", "".join(lines))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, last of all: a folder that has one is complete."""
        self._write("summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def __exit__(self, *_: object) -> None:
        self._history.close()
        self._clients.close()
        self._rounds.close()
        self._unfinished.close()

    def _write(self, name: str, text: str) -> None:
        partial = self.path / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, self.path / name)


def check_free(path: Path) -> None:
    """Refuse a folder that already holds something, so that no finished run is overwritten."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"out: {path} is a file; accepted: a new or empty folder")
        if path.is_dir() and any(path.iterdir()):
            raise _taken(path)
    except OSError as error:
        raise InputError(f"out: {path} cannot be a folder ({error.strerror})") from None


def _taken(path: Path) -> TakenError:
    return TakenError(f"out: {path} is not empty; accepted: a new or empty folder")


def _line(row: Mapping[str, Any]) -> str:
    return _encode(row) + "\n"


def _lines(columns: Mapping[str, Sequence[Any]]) -> Iterable[str]:
    """The same for many rows, column by column, and what is the same in all of them once: ten times as fast."""
    count = len(columns["client"])
    if not count:
        return []
    fields, different = [], []
    for name, column in columns.items():
        same = column.count(column[0]) == count
        fields.append(f"{_encode(name)}: {_encode(column[0]).replace('%', '%%') if same else '%s'}")
        if not same:
            different.append(_texts(column))
    template = "{" + ", ".join(fields) + "}\n"
    return map(template.__mod__, zip(*different, strict=True)) if different else [template % ()] * count


def _texts(column: Sequence[Any]) -> list[str]:
    if any(isinstance(value, list | dict) for value in column):
        return [_encode(value) for value in column]
    return _encode(column)[1:-1].split(", ")
