"""MLflow: a database on the disk, or a server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedkeel.errors import InputError, shown
from fedkeel.record.lock import one_by_one
from fedkeel.runner.sinks import Start
from fedkeel.sinks.memory import Known, Memory
from fedkeel.sinks.packages import needed
from fedkeel.sinks.scalars import MARK, Point, Scalars, settings
from fedkeel.sinks.tracker import WITHOUT_FOLDER, Tracker, run_name

NAME = "mlflow"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SQLITE = "sqlite:///"
_MOST_PARAMETERS, _MOST_METRICS, _LONGEST = 100, 1000, 500
"""Limits of a request, and of a value in characters, that every version of MLflow accepts."""
_ENDED = "fedkeel.ended"
"""The tag that says how the run ended."""


class MLflow(Tracker):
    """Writes to an MLflow store: one run of an MLflow experiment.

    `uri` is `sqlite:///FILE`, another database, or the address of a server. Without it, it is what the environment
    variable MLFLOW_TRACKING_URI says, or else a database `mlflow/mlflow.db` inside the run folder. Folders of files
    (`file:`) are not among these: current versions of MLflow refuse them. MLflow's own telemetry is off unless the
    environment variable MLFLOW_DISABLE_TELEMETRY says otherwise.
    """

    def __init__(self, uri: str | None = None, experiment: str = "fedkeel") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._uri = _checked(uri) if uri is not None else os.environ.get("MLFLOW_TRACKING_URI") or None
        self._package = needed(NAME, NAME)
        if self._uri is None or self._uri.startswith(_DATABASES):
            needed(NAME, "sqlalchemy", "alembic")
        if not isinstance(experiment, str) or not experiment.strip():
            raise InputError(f"sinks: the MLflow experiment must be a name; got {shown(experiment)}")
        self._experiment = experiment

    def _open(self, start: Start) -> int:
        for name in ("mlflow.store.db.utils", "alembic"):  # they log every table that they make
            logging.getLogger(name).setLevel(logging.WARNING)
        home = (WITHOUT_FOLDER if start.folder is None else start.folder).absolute() / NAME
        uri = self._uri or f"{_SQLITE}{home / 'mlflow.db'}"
        with _made_once(uri):
            return self._begin(start, uri, home)

    def _begin(self, start: Start, uri: str, home: Path) -> int:
        self._client = self._package.MlflowClient(tracking_uri=uri)
        memory = Memory(start.folder, NAME)
        known = memory.recall(self._uri or "")
        run = None if known is None else self._found(known.id)
        if run is None:
            run = self._client.create_run(self._experiment_id(home), run_name=run_name(start))
            memory.keep(Known(self._uri or "", run.info.run_id))
        else:
            self._client.update_run(run.info.run_id, status="RUNNING")
        self._id = run.info.run_id
        self._add_parameters(start, run.data.params)
        return max((each.step for each in self._client.get_metric_history(self._id, MARK)), default=0)

    def _found(self, run_id: str) -> Any:
        """The run that was begun earlier, unless somebody has deleted it."""
        try:
            run = self._client.get_run(run_id)
        except self._package.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run.info.lifecycle_stage == "active" else None

    def _experiment_id(self, home: Path) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                place = (home / "artifacts").as_uri() if self._uri is None else None
                return str(self._client.create_experiment(self._experiment, artifact_location=place))
            except self._package.MlflowException:  # another run was faster
                found = self._client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _add_parameters(self, start: Start, there: Any) -> None:
        """Those that are not there yet: MLflow does not let them change."""
        kind = self._package.entities.Param
        told = {name: value for name, value in settings(start.experiment).items() if name not in there}
        for part in _parts([kind(name, str(value)[:_LONGEST]) for name, value in told.items()], _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=part)

    def _write(self, told: Point) -> None:
        self._add_metrics(told.scalars, told.round)

    def _add_metrics(self, scalars: Scalars, step: int) -> None:
        kind, now = self._package.entities.Metric, int(1000 * time.time())
        for part in _parts([kind(name, value, now, step) for name, value in scalars.items()], _MOST_METRICS):
            self._client.log_batch(self._id, metrics=part)

    def _complete(self, summary: Scalars) -> None:
        self._add_metrics(summary, self._told)
        self._close("complete", "FINISHED")

    def _broken(self, why: str, asked: bool) -> None:
        self._close(why, "KILLED" if asked else "FAILED")

    def _close(self, said: str, status: str) -> None:
        self._client.set_tag(self._id, _ENDED, said[:_LONGEST])
        self._client.set_terminated(self._id, status)


@contextmanager
def _made_once(uri: str) -> Iterator[None]:
    """Of runs that begin at the same time, one makes the tables of a database on disk; MLflow does not ensure that."""
    name = uri.removeprefix(_SQLITE).split("?")[0]
    if not uri.startswith(_SQLITE) or name in ("", ":memory:"):
        yield
        return
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with one_by_one(path.with_name(f"{path.name}.lock")):
        yield


def _checked(uri: str) -> str:
    if not isinstance(uri, str) or not (re.match(r"[a-z][a-z0-9+]*:.", uri) or uri.startswith("databricks")):
        raise InputError(f"sinks: the MLflow store must be sqlite:///FILE or the address of a server; got {shown(uri)}")
    return uri


def _parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    """At most so many at a time."""
    for first in range(0, len(items), most):
        yield items[first : first + most]
