"""The folder of a comparison: its plan, one folder per run, what failed, and the executors that were settled."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.config.experiment import contradiction
from fedkeel.errors import InputError, MishapError, label
from fedkeel.local.settings import ExecutorSettings
from fedkeel.record.durable import PARTIAL, whole
from fedkeel.record.folder import check_space, complete
from fedkeel.record.lock import BusyError, lock
from fedkeel.study import kept
from fedkeel.study.kept import PLAN, KeptPlan
from fedkeel.study.plan import Comparison
from fedkeel.study.tasks import Estimate

EXECUTORS, RUNS, FAILED = "executors.json", "runs", "failed"
PRUNED = "Pruned"
"""The kind of failure of a run that a search stopped early."""


@dataclass(frozen=True)
class Store:
    """Where the runs of a plan are."""

    path: Path

    def folder(self, name: str) -> Path:
        """The folder of a run."""
        return self.path / RUNS / name

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other command works here meanwhile: two commands would take each other's runs for failed ones."""
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(
                f"out: {label(str(self.path))} cannot be written ({error.strerror}); choose another folder"
            ) from None
        try:
            lock(folder)
            yield
        except BusyError:
            raise InputError(
                f"out: {label(str(self.path))} is in use; choose another folder, or wait until the other command has "
                "ended"
            ) from None
        finally:
            os.close(folder)
            if made:
                with suppress(OSError):  # unless it holds something
                    self.path.rmdir()

    def failure(self, name: str) -> str | None:
        """Why a run failed, if it did; a run whose folder is complete did not, even if its process died just then.

        A run that a search stopped does not count as finished, even if the stop came too late for it.
        """
        if complete(self.folder(name)) and not self.pruned(name):
            return None
        told = _json(self.path / FAILED / f"{name}.json")
        return str(told["error"]) if isinstance(told, dict) and "error" in told else None

    def final(self, name: str) -> bool:
        """Whether a failure would come again: training that diverges does so every time."""
        return self.kind(name) == "DivergenceError"

    def pruned(self, name: str) -> bool:
        """Whether a search stopped a run early."""
        return self.kind(name) == PRUNED

    def kind(self, name: str) -> str:
        """The class of the error with which a run failed, if it did."""
        told = _json(self.path / FAILED / f"{name}.json")
        return str(told.get("kind")) if isinstance(told, dict) else ""

    def fail(self, name: str, kind: str, error: str) -> None:
        """Write down why a run failed."""
        _write(self.path / FAILED / f"{name}.json", {"kind": kind, "error": error})

    def forget(self, name: str) -> None:
        """A run that failed is tried again."""
        (self.path / FAILED / f"{name}.json").unlink(missing_ok=True)

    def estimates(self) -> dict[str, Estimate]:
        """The executors that were settled, with what runs take, by key."""
        told = _json(self.path / EXECUTORS)
        with suppress(Exception):  # nothing yet, or a file of another version: then they are settled again
            return {
                k: Estimate(**{**each, "executor": ExecutorSettings(**each["executor"])}) for k, each in told.items()
            }
        return {}

    def keep_estimates(self, settled: Mapping[str, Estimate]) -> None:
        """Write them down; from then on, runs use them."""
        told = {key: {**vars(each), "executor": each.executor.model_dump()} for key, each in settled.items()}
        _write(self.path / EXECUTORS, told)

    def keep(self, plan: Comparison) -> None:
        """Write down a plan, unless the folder belongs to another one; runs may have been added to it."""
        self.check(plan)
        self.write_plan(plan)

    def write_plan(self, plan: Comparison) -> None:
        """Write down a plan in place of any other."""
        _write(self.path / PLAN, kept.told(plan))

    def check(self, plan: Comparison) -> None:
        """Refuse a folder that cannot be written, or belongs to something else."""
        self.check_writable()
        if not (self.path / PLAN).exists() and self.holds_more_than(PLAN, EXECUTORS):
            raise InputError(
                f"out: {label(str(self.path))} holds something else; choose a new or empty folder, or that of this "
                "comparison"
            )
        if (self.path / PLAN).exists():
            self._check_same(plan)

    def check_writable(self) -> None:
        """Refuse what is no folder, or cannot be written."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"out must be a folder; got the file {label(str(self.path))}")
        check_space(self.path, 0)

    def holds_more_than(self, *names: str) -> bool:
        """Whether the folder holds something beside these files, which a killed process may have left unfinished."""
        own = {*names, *(name + PARTIAL for name in names)}
        return self.path.is_dir() and any(inside.name not in own for inside in self.path.iterdir())

    def write(self, name: str, told: Any) -> None:
        """A file of values, whole or not at all."""
        _write(self.path / name, told)

    def write_text(self, name: str, text: str) -> None:
        """A file, whole or not at all."""
        _write_text(self.path / name, text)

    def _check_same(self, plan: Comparison) -> None:
        before = self.plan()
        self._check_code(before, plan)
        now = {case.name: case for case in plan.cases}
        for case in before.cases:
            if case.name not in now:
                raise self._another(f"its run {case.name} is not part of this one")
            if reason := contradiction(case.experiment, kept.settings(now[case.name])):
                raise self._another(f"its run {case.name} has {reason}")

    def _check_code(self, before: KeptPlan, plan: Comparison) -> None:
        """Refuse to mix results of the user's code before and after a change of it."""
        now = kept.own_code(plan.cases)
        changed = [name for name in now if name in before.code and now[name] != before.code[name]]
        if changed and any(complete(self.folder(case.name)) for case in plan.cases):
            raise InputError(
                f"out: {label(str(self.path))} holds runs of another version of {', '.join(changed)}; choose another "
                "folder"
            )

    def _another(self, why: str) -> InputError:
        return InputError(
            f"out: {label(str(self.path))} belongs to another comparison ({why}); choose another folder, or only add "
            "variants, scenes or seeds to that comparison"
        )

    def plan(self) -> KeptPlan:
        """The plan that was written down."""
        try:
            return kept.read(_json(self.path / PLAN))
        except InputError as error:
            raise InputError(f"comparison {label(str(self.path))}: {error}") from None


def is_comparison(path: Path) -> bool:
    """Whether a folder is that of a comparison."""
    return (path / PLAN).is_file()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _write(path: Path, told: Any) -> None:
    _write_text(path, json.dumps(told, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MishapError(
            f"{path} cannot be written ({error.strerror}); finished runs are safe, and the same command continues"
        ) from error
