"""Simulates the experiment of a recorded run on the devices of that run, and compares the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel import api
from fedkeel.config.experiment import Experiment
from fedkeel.config.files import reason
from fedkeel.config.usercode import GIVEN
from fedkeel.data.files import kinds
from fedkeel.errors import InputError, label
from fedkeel.record import schema
from fedkeel.record.folder import check_free, complete
from fedkeel.record.rows import Arrival, Unfinished
from fedkeel.record.runs import RunRecord
from fedkeel.record.sites import absences, own_data, waits
from fedkeel.runner.initial import COPY
from fedkeel.runner.sinks import Sink
from fedkeel.runner.stopping import Stop
from fedkeel.study.prediction import Course, Prediction, compare
from fedkeel.world.fleet.measured import Trace, trace

TRACE = "devices.csv"
"""The file of the devices in the folder of the run that was measured."""
ENDING = "replay"
"""What the folder of a simulated run is called after the name of the measured one."""


@dataclass(frozen=True)
class Replay:
    """A run that was simulated on the devices of another one."""

    folder: Path
    experiment: Experiment
    measured: RunRecord
    notes: tuple[str, ...]

    def run(self, sinks: Sequence[Sink] = (), stop: Stop | None = None) -> Prediction:
        """Simulate it, compare it, and leave the comparison in its folder."""
        api.run(self.experiment, self.folder, sinks=sinks, stop=stop)
        simulated = RunRecord.read(self.folder)
        courses = Course.of(self.measured), Course.of(simulated)
        found = compare(*courses, self.measured.metric(), str(self.measured.path), self.notes)
        found.save(self.folder)
        return found


def devices(record: RunRecord) -> Trace:
    """The devices of a run, from its folder."""
    experiment = _stored(record)
    with record.told_if_damaged("clients.jsonl"):
        arrivals = [Arrival.read(row) for row in record.arrivals()]
    if not arrivals:
        raise InputError(
            f"run folder {label(str(record.path))}: no upload has arrived, so the run does not tell how fast its "
            "devices are; name a run with results"
        )
    with record.told_if_damaged("unfinished.jsonl"):
        unfinished = [Unfinished.read(row) for row in record.unfinished()]
    asked = experiment.local.units if experiment.fleet.rho else None
    survey = experiment.algorithm.rules()[0].survey
    of_sites = waits(record), absences(record)
    return trace(arrivals, unfinished, experiment.clients, experiment.local, asked, survey, *of_sites)


def write(found: Trace, path: Path) -> Path:
    """The trace as a CSV file."""
    if path.suffix != ".csv":
        raise InputError(f"out must be a file name that ends in .csv; got {label(str(path))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found.text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"out: {label(str(path))} cannot be written ({reason(error)}); choose another place") from None
    return path


def plan(run: Path, out: Path | None = None, settings: Sequence[str] = ()) -> Replay:
    """What is going to be simulated; everything is checked, and the devices are written to the measured run's folder.

    `settings` replace those of the run's experiment.
    """
    record = RunRecord.read(run)
    folder = _free(run) if out is None else out
    check_free(folder)
    found = devices(record)
    experiment = _simulated(record, settings)
    write(found, run / TRACE)
    return Replay(folder, experiment, record, (*found.notes, *_notes(record, experiment)))


def _stored(record: RunRecord) -> Experiment:
    with record.told_if_damaged(schema.EXPERIMENT):
        return Experiment.build(record.experiment)


def _simulated(record: RunRecord, settings: Sequence[str]) -> Experiment:
    """The run's own experiment on its own devices.

    Faults are left out, because the devices lose as many jobs, and so is the limit of real time.
    """
    stored = _stored(record)
    fleet = {"profile": str(record.path / TRACE), "rho": stored.fleet.rho, "tau_max": stored.fleet.tau_max}
    called = f"{(stored.name or stored.algorithm.label)[:60]} predicted"
    changes: dict[str, Any] = {"fleet": fleet, "faults": {}, "limit_wall_seconds": None, "name": called}
    if (record.path / COPY).exists():
        changes["init"] = str(record.path / COPY)
    experiment = Experiment.build({**record.experiment, **changes}, settings)
    named = any(each.partition("=")[0].strip() in ("dataset", "dataset.name") for each in settings)
    if own_data(record) and not named:
        raise InputError(
            "the data of this run is at its sites, not here; name data to simulate with: --set dataset=..., or "
            "--set dataset.name=... if a copy of the sites' rows is here"
        )
    _check_here(experiment)
    return experiment


def _check_here(experiment: Experiment) -> None:
    """Refuse what only the sites of a deployment have, or the Python program that made the run."""
    data, model = experiment.dataset.name, experiment.model.name
    if data.startswith(GIVEN):
        raise InputError(
            f"the data of this run, {label(data.removeprefix(GIVEN))}, was given in Python or is at its sites, not "
            "here; name data to simulate with: --set dataset=..."
        )
    if kinds.kind(data) not in (None, "hf"):
        try:
            kinds.found(data)
        except InputError:
            raise InputError(
                f"the data of this run, {label(data)}, is not here; name data to simulate with: --set dataset=..."
            ) from None
    if model.startswith(GIVEN):
        raise InputError(
            f"the model of this run, {label(model.removeprefix(GIVEN))}, was given in Python; name one to simulate "
            "with: --set model=..."
        )


def _notes(record: RunRecord, experiment: Experiment) -> list[str]:
    found = []
    if not complete(record.path):
        found.append(f"the run in {record.path} has not finished; the simulation goes on to its planned end")
    simulated = experiment.dataset.name
    if own_data(record):
        found.append(
            f"the data of the run is at its sites, and the simulation has {label(simulated)}; unless these are the "
            "same rows, only times can be compared"
        )
    elif simulated != record.experiment["dataset"]["name"]:
        found.append(
            f"the simulation has other data than the run, {label(simulated)}, so only their times can be compared"
        )
    return found


def _free(run: Path) -> Path:
    """A new folder beside the run's."""
    run = run.absolute() if run.name in ("", "..") else run
    path, number = run.with_name(f"{run.name}-{ENDING}"), 1
    while path.exists():
        number += 1
        path = run.with_name(f"{run.name}-{ENDING}-{number}")
    return path
