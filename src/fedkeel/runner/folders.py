"""The folder of a run: a new one, or that of a run which is resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedkeel.errors import MishapError
from fedkeel.local.native import library
from fedkeel.record import measured
from fedkeel.record.folder import RunFolder, check_space
from fedkeel.record.machine import INSTRUCTION_SET, other_instruction_set
from fedkeel.record.subject import Subject
from fedkeel.runner import earlier, extend
from fedkeel.runner.run import Run

COPIES = 4
"""Of the server's state that a run needs for sure: the model, two checkpoints, and a third while it is written."""


def create(
    run: Run,
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
    check_space(place, COPIES * run.standing().state_bytes)
    found = subject(run, reasons)
    weights = {} if start is None else start.state_dict()
    return RunFolder.below(place, found, weights) if out is None else RunFolder.create(place, found, weights)


def reopen(
    run: Run, reasons: Mapping[str, Any], path: Path, tell: Callable[[str], None], changed: bool = False
) -> RunFolder:
    """The folder of an earlier run; the run is as it was when its last checkpoint was written.

    Where settings have `changed`, they are checked and written down.
    """
    check_space(path, COPIES * run.standing().state_bytes)
    admit = partial(extend.check, run.experiment) if changed else None
    folder, found = RunFolder.reopen(path, subject(run, reasons), admit)
    try:
        if found is None:
            tell(f"{path} has no checkpoint yet: the run starts again from round 1")
            earlier.inherit(run, earlier.remembered(run.experiment, run.layout))
            return folder
        other = other_instruction_set(
            folder.beginning.get(INSTRUCTION_SET), reasons.get(INSTRUCTION_SET), library.usable()
        )
        notes = (*found.notes, *([other] if other else []))
        for sentence in (*found.passed_over, *notes, f"{path} goes on after round {found.number}"):
            tell(sentence)
        try:
            run.restore(found.state)
        except KeyError as error:
            raise MishapError(f"checkpoint {found.path} lacks {error}; another version of fedkeel wrote it") from error
    except BaseException:
        folder.close()
        raise
    return folder


def subject(run: Run, reasons: Mapping[str, Any]) -> Subject:
    """What its folder has to know of a run."""
    beginning = {**reasons, measured.METRICS: measured.told(run.task.metrics)}
    return Subject(run.experiment, run.identity(), run.classes, beginning)
