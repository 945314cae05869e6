"""The folder of a run: a new one, or that of a run which is resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedkeel.data.federated import FederatedData
from fedkeel.errors import MishapError
from fedkeel.local.native import library
from fedkeel.params import Layout
from fedkeel.record import measured
from fedkeel.record.folder import RunFolder, check_space
from fedkeel.record.machine import INSTRUCTION_SET, other_instruction_set
from fedkeel.record.subject import Subject
from fedkeel.runner import earlier, extend
from fedkeel.runner.simulation import Simulation
from fedkeel.world.fleet.profile import Fleet

COPIES = 4
"""Of the server's state that a run needs for sure: the model, two checkpoints, and a third while it is written."""
_SAMPLES = 1000


def create(
    simulation: Simulation,
    reasons: Mapping[str, Any],
    out: Path | None,
    below: Path | None,
    start: nn.Module | None = None,
) -> RunFolder | None:
    """A new folder, `out` or one inside `below`; none where neither is given.

    `reasons` are those for the choice of the executor. `start` is the model before the first round, where its weights
    are to be kept.
    """
    place = below if out is None else out
    if place is None:
        return None
    check_space(place, COPIES * simulation.standing().state_bytes)
    found = subject(simulation, reasons)
    weights = {} if start is None else start.state_dict()
    return RunFolder.below(place, found, weights) if out is None else RunFolder.create(place, found, weights)


def reopen(
    simulation: Simulation, reasons: Mapping[str, Any], path: Path, tell: Callable[[str], None], changed: bool = False
) -> RunFolder:
    """The folder of an earlier run; the simulation is as it was when its last checkpoint was written.

    Where settings have `changed`, they are checked and written down.
    """
    check_space(path, COPIES * simulation.standing().state_bytes)
    admit = partial(extend.check, simulation.experiment) if changed else None
    folder, found = RunFolder.reopen(path, subject(simulation, reasons), admit)
    try:
        if found is None:
            tell(f"{path} has no checkpoint yet: the run starts again from round 1")
            earlier.inherit(simulation, earlier.remembered(simulation.experiment, simulation.layout))
            return folder
        other = other_instruction_set(
            folder.beginning.get(INSTRUCTION_SET), reasons.get(INSTRUCTION_SET), library.usable()
        )
        notes = (*found.notes, *([other] if other else []))
        for sentence in (*found.passed_over, *notes, f"{path} goes on after round {found.number}"):
            tell(sentence)
        try:
            simulation.restore(found.state)
        except KeyError as error:
            raise MishapError(f"checkpoint {found.path} lacks {error}; another version of fedkeel wrote it") from error
    except BaseException:
        folder.close()
        raise
    return folder


def subject(simulation: Simulation, reasons: Mapping[str, Any]) -> Subject:
    """What its folder has to know of a run."""
    found = identity(simulation.data, simulation.layout, simulation.fleet)
    beginning = {**reasons, measured.METRICS: measured.told(simulation.task.metrics)}
    return Subject(simulation.experiment, found, simulation.classes, beginning)


def identity(data: FederatedData, layout: Layout, fleet: Fleet) -> str:
    """A digest of the model's layout, of the devices and of the data.

    Of the data: who has which samples, all labels, and the values of a thousand samples.
    """
    digest = sha256(repr((layout.parameters, layout.buffers)).encode())
    columns = [getattr(fleet, field.name) for field in fields(fleet)]
    devices = [column for column in columns if isinstance(column, np.ndarray)]
    for array in (data.assignment.indices, data.assignment.offsets, *devices):
        digest.update(array.tobytes())
    for part in (data.train, data.test):
        some = part.x[:: max(1, len(part.x) // _SAMPLES)].cpu().numpy().tobytes()
        digest.update(f"{tuple(part.x.shape)} {part.x.dtype}".encode())
        digest.update(part.y.cpu().numpy().tobytes())
        digest.update(some)
    return digest.hexdigest()
