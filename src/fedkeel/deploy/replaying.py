"""`fedkeel deploy replay`: the events of a run, fed to a new server."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from fedkeel.config.experiment import Experiment
from fedkeel.deploy.journal import BEGIN, FILE, Replay, read
from fedkeel.deploy.prepared import Built
from fedkeel.deploy.standin import no_counts, stand_in
from fedkeel.errors import FedkeelError, InputError
from fedkeel.record.folder import complete
from fedkeel.record.places import DEPLOYMENT
from fedkeel.record.schema import EXPERIMENT
from fedkeel.runner import earlier, initial
from fedkeel.runner.core import new_core


@dataclass(frozen=True)
class Replayed:
    """What came of a replay."""

    events: int
    rounds: int
    equal: bool
    """Whether the weights are those of the run, bit for bit."""


def replay(run: Path, app: Path | None = None) -> Replayed:
    """Feed the events of a run to a new server and compare the weights; `app` has the modules of the user, if any."""
    if not (run / DEPLOYMENT).exists():
        raise InputError(f"{run} is not the folder of a deployment; give one that fedkeel deploy has written")
    if not (run / FILE).exists():
        raise InputError(f"{run} has no record of its events; set record_uploads: true in deploy.yaml before the run")
    if not complete(run):
        raise InputError(f"{run} is not complete; let it end first, with the command that started it")
    if app is not None:
        sys.path.insert(0, str(app.resolve()))
    told = json.loads((run / DEPLOYMENT).read_text(encoding="utf-8"))
    built = _built(run, told, app is None)
    experiment, records = built.experiment, read(run / FILE)
    first = next(records, None)
    if first is None or first.kind != BEGIN:
        raise FedkeelError(f"{run / FILE} does not begin with the start of a run; replay a run that was recorded whole")
    samples = np.array(first.facts["samples"], dtype=np.int64)
    held = np.full(len(samples), built.data.classes)
    core = new_core(experiment, samples, built.flat, lambda: held, persists=True)
    memory = earlier.remembered(experiment, built.layout)
    if memory is not None:
        core.model.inherit(memory)
    fed, events = Replay(core, samples), 0
    for message in records:
        fed.feed(message)
        events += 1
    built.flat.load(core.model.evaluated, core.model.buffers)
    mine = built.flat.release().state_dict()
    theirs = _weights(run)
    equal = bool(theirs) and all(torch.equal(mine[name], each) for name, each in theirs.items())
    return Replayed(events, core.round - 1, equal)


def _built(run: Path, told: dict[str, Any], alone: bool) -> Built:
    """The model as the run had it; `alone` without the modules of the user."""
    try:
        experiment = Experiment.load(run / EXPERIMENT)
        data = stand_in(experiment, told["sites"], told["data"])
        return Built.of(experiment, data, told["data"]["own"], no_counts(experiment, data), run / initial.COPY)
    except InputError as error:
        if alone:
            raise InputError(f"{error}; if it is your own code, name the project's folder with --app") from None
        raise


def _weights(run: Path) -> dict[str, torch.Tensor]:
    for name in ("model", "header"):
        if (path := run / f"{name}.safetensors").exists():
            return dict(load_file(path))
    raise FedkeelError(f"{run} has no model.safetensors")
