"""The folder of one run: experiment.yaml, run.json, labels.json, files of rows, checkpoints, summary.json, weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save as packed
from torch import Tensor

from fedkeel.config.experiment import contradiction
from fedkeel.errors import FedkeelError, MishapError
from fedkeel.record import divergence, schema
from fedkeel.record.checkpoints import Checkpoints, Held, Loaded, VersionError
from fedkeel.record.durable import sync_folder, whole
from fedkeel.record.ends import ASIDE, ENDS
from fedkeel.record.lock import BusyError, lock
from fedkeel.record.machine import continued, renewed
from fedkeel.record.places import CHECKPOINTS as CHECKPOINTS
from fedkeel.record.places import ROWS as ROWS
from fedkeel.record.places import START_WEIGHTS as START_WEIGHTS
from fedkeel.record.places import FolderError, TakenError, is_partial, taken
from fedkeel.record.places import begun as begun
from fedkeel.record.places import check_free as check_free
from fedkeel.record.places import check_resumable as check_resumable
from fedkeel.record.places import check_space as check_space
from fedkeel.record.places import complete as complete
from fedkeel.record.places import worked_on as worked_on
from fedkeel.record.rowfile import START, Position, RowFile, line, lines
from fedkeel.record.rows import Evaluation, Refused, RoundEnd, Unfinished
from fedkeel.record.schema import CLIENT_METRICS, EXPERIMENT, LABELS, RUN, SUMMARY
from fedkeel.record.standing import Rest
from fedkeel.record.subject import Subject


class RunFolder(AbstractContextManager["RunFolder"]):
    """Rows are written as they come; what is written whole is renamed into place.

    Whoever has it open has it alone.
    """

    def __init__(self, path: Path, subject: Subject, wait: bool) -> None:
        """Open what is there."""
        self.path = path
        self._subject = subject
        self._changed = False
        """Whether settings have changed, which are checked elsewhere."""
        self.checkpoints = Checkpoints(path / CHECKPOINTS, subject.identity, subject.classes)
        self._rows = {name: RowFile(path / f"{name}.jsonl") for name in ROWS[:1]}
        lock(self._rows["history"].fileno(), wait)
        self._rows |= {name: RowFile(path / f"{name}.jsonl") for name in ROWS[1:]}

    @classmethod
    def create(cls, path: str | Path, subject: Subject, start: Mapping[str, Tensor] | None = None) -> RunFolder:
        """Begin a new folder; `start` are weights from elsewhere that the run starts from."""
        path = Path(path)
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path, subject, wait=False)
            try:
                if begun(path):
                    raise taken(path)
                folder._rewind(None)
                if start:
                    folder.save(START_WEIGHTS, start)
                with whole(path / EXPERIMENT) as partial:
                    partial.write_text(subject.experiment.to_yaml(), encoding="utf-8")
                folder._mark()
            except BaseException:
                folder.close()
                raise
        except BusyError:
            raise taken(path) from None
        except OSError as error:
            raise FolderError(f"out: {path} cannot be written ({error.strerror})") from None
        return folder

    @classmethod
    def below(cls, parent: Path, subject: Subject, start: Mapping[str, Tensor] | None = None) -> RunFolder:
        """A new folder inside `parent`, named after the experiment, with a number behind it where that is taken."""
        name, number = subject.folder_name, 1
        path = parent / name
        while True:
            with suppress(TakenError):
                if not path.exists():
                    return cls.create(path, subject, start)
            number += 1
            path = parent / f"{name}-{number}"

    @classmethod
    def reopen(
        cls, path: Path, subject: Subject, admit: Callable[[RunFolder, Loaded | None], None] | None = None
    ) -> tuple[RunFolder, Loaded | None]:
        """(An earlier run's, as it was when its newest usable checkpoint was written; that, if there is one).

        With `admit`, settings have changed: nothing is touched before `admit` has returned, and `experiment.yaml` is
        written anew.
        """
        try:
            folder = cls(path, subject, wait=True)
            try:
                folder._changed = admit is not None
                found = folder.checkpoints.load(folder._objection, folder._ended_otherwise)
                if admit is not None:
                    admit(folder, found)
                    folder._change()
                folder._rewind(found)
                folder._mark(anew=found is None)
                divergence.remove(path)
                folder.checkpoints.clean()
                for left in filter(is_partial, path.iterdir()):
                    left.unlink()
            except BaseException:
                folder.close()
                raise
        except BusyError:
            raise FolderError(f"resume: {path} is in use; wait until the other process has ended") from None
        except VersionError as error:
            raise FolderError(f"resume: {error}; {subject.other_way(path / EXPERIMENT, error.earlier)}") from None
        except OSError as error:
            raise MishapError(f"resume: {path} cannot be written ({error.strerror})") from None
        return folder, found

    def _objection(self, state: Mapping[str, Any]) -> str | None:
        """Why a checkpoint does not fit the description, or the rows that go with it are not there, if so."""
        other = contradiction(state["experiment"], self._subject.experiment.model_dump(), aside=ASIDE)
        rounds = self._subject.experiment.rounds
        if not (state["over"] or self._changed) and state["experiment"]["rounds"] != rounds:
            if state["core"]["round"] > rounds:
                return f"the run is to end before it, with rounds={rounds}"
            if self._subject.experiment.plans_ahead:
                other = f"rounds={state['experiment']['rounds']}, not {rounds}"
        if other:
            return f"it was written with {other}"
        return next(filter(None, (self._rows[name].objection(state["rows"][name]) for name in ROWS)), None)

    def _ended_otherwise(self, state: Mapping[str, Any]) -> bool:
        """Whether a checkpoint is of the end of a run that now ends at another point."""
        ends = {name: state["experiment"].get(name) for name in ENDS}
        return bool(state["over"] and contradiction(ends, self._subject.experiment.model_dump()))

    def _change(self) -> None:
        """Write the changed description.

        The summary goes first: without it, the run is one that can be resumed, whichever description is there.
        """
        (self.path / SUMMARY).unlink(missing_ok=True)
        sync_folder(self.path)
        with whole(self.path / EXPERIMENT) as partial:
            partial.write_text(self._subject.experiment.to_yaml(), encoding="utf-8")

    def _rewind(self, found: Loaded | None) -> None:
        """Cut off what was written after a checkpoint.

        `rounds` comes first: while it has a round's row, the other files have all rows up to that one. `follow` relies
        on that.
        """
        for name in sorted(ROWS, key="rounds".__ne__):
            self._rows[name].rewind(found.state["rows"][name] if found else START)

    def _mark(self, anew: bool = False) -> None:
        """Write `run.json`; a resumed run writes it again, with the same content but for other native kernels.

        By the new file `follow` notices that rows were cut off. So this comes after that, and before new rows.
        """
        path, now = self.path / RUN, self._subject.beginning
        text = path.read_text(encoding="utf-8") if path.exists() else schema.text(now)
        with whole(path) as partial:
            partial.write_text((renewed if anew else continued)(text, now), encoding="utf-8")

    @property
    def beginning(self) -> Mapping[str, Any]:
        """How the run began, as that was written down; what an earlier version did not write is as it is now."""
        told = json.loads((self.path / RUN).read_text(encoding="utf-8"))
        return {name: told.get(name, value) for name, value in self._subject.beginning.items()}

    def history(self) -> list[Evaluation]:
        """What has been written of it."""
        text = (self.path / "history.jsonl").read_text(encoding="utf-8")
        return [Evaluation.read(json.loads(row)) for row in text.splitlines()]

    def add(self, end: RoundEnd) -> None:
        """Write down one round; `follow` relies on this order of the files."""
        with self._explained():
            self._rows["clients"].add(lines(end.arrivals.plain))
            self._add_rows(end.unfinished, end.refused)
            self._rows["rounds"].add([line(end.row.plain())])
            if end.evaluation is not None:
                self._rows["history"].add([line(end.evaluation.plain())])

    def add_rest(self, rest: Rest) -> None:
        """Write down what came after the last round."""
        with self._explained():
            self._add_rows(rest.unfinished, rest.refused)

    def _add_rows(self, unfinished: Sequence[Unfinished], refused: Sequence[Refused]) -> None:
        self._rows["unfinished"].add(line(row.plain()) for row in unfinished)
        self._rows["refused"].add(line(row.plain()) for row in refused)

    def checkpoint(self, round: int, state: Mapping[str, Any]) -> Path:
        """Write down the state after a round; the rows up to then are safe first."""
        with self._explained():
            self._sync()
            try:
                return self.checkpoints.save(round, {**state, "rows": self._positions})
            except FedkeelError as error:
                raise type(error)(f"{error}; {self.way_on}") from error

    def hold(self, round: int, state: Mapping[str, Any]) -> Held:
        """The state after a round in memory; one that cannot be written is refused."""
        return self.checkpoints.hold(round, {**state, "rows": self._positions})

    def write_held(self, held: Held) -> None:
        """Write down a state that was held."""
        with self._explained():
            self._sync()
            self.checkpoints.save_held(held)

    @property
    def _positions(self) -> dict[str, Position]:
        return {name: rows.position for name, rows in self._rows.items()}

    def _sync(self) -> None:
        for rows in self._rows.values():
            rows.sync()

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors to `name.safetensors`."""
        owned = {key: tensor.clone().contiguous() for key, tensor in tensors.items()}  # tied weights too
        with self._explained(), whole(self.path / f"{name}.safetensors") as partial:
            partial.write_bytes(packed(owned))  # safetensors would write to a file of its own, which a kill leaves

    def add_client_metrics(
        self,
        columns: Mapping[str, NDArray[np.float64]],
        rows: Sequence[int],
        names: Sequence[str] | None,
        estimated: bool,
    ) -> None:
        """Write `client_metrics.jsonl`, one row per client; null where one could not be tested.

        `rows` says on how many test rows; `estimated`, that these were drawn from a common test set.
        """
        told = []
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        for client, (count, row) in enumerate(zip(rows, values, strict=True)):
            known = {name: None if value != value else value for name, value in zip(columns, row, strict=True)}
            name = {} if names is None else {"name": names[client]}
            told.append(line({"client": client, **name, "rows": count, **known, "estimated": estimated}))
        self._write(CLIENT_METRICS, "".join(told))

    def add_labels(self, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Write down who holds which labels, unless that was done before."""
        if not (self.path / LABELS).exists():
            self._write(LABELS, json.dumps(describe()) + "\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, last of all: a folder that has one is complete."""
        self._write(SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the files."""
        for rows in self._rows.values():
            rows.close()

    def __exit__(self, _: object = None, error: BaseException | None = None, __: object = None) -> None:
        if isinstance(error, KeyboardInterrupt) and not complete(self.path):
            error.add_note(self.advice)
        divergence.note(self.path, error)
        self.close()

    def _write(self, name: str, text: str) -> None:
        with self._explained(), whole(self.path / name) as partial:
            partial.write_text(text, encoding="utf-8")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A full disk and the like, with what is safe."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MishapError(f"{self.path} cannot be written ({reason}); {self.advice}") from error

    @property
    def last(self) -> str:
        """Which checkpoint is the last."""
        newest = self.checkpoints.newest
        return f"the last checkpoint is {newest}" if newest else "there is no checkpoint yet"

    @property
    def advice(self) -> str:
        """What is safe, and how to go on."""
        return f"{self.last}; {self.way_on}"

    @property
    def way_on(self) -> str:
        """How to go on."""
        how = "resume with" if self.checkpoints.newest else "start it again with"
        return f"{how}: {self._subject.resumption(self.path)}"
