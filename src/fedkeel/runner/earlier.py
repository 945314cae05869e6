"""What the server of an earlier run had learnt, for a rule that begins with it (`algorithm.earlier_run`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedkeel.config.algorithm import AlgorithmSettings
from fedkeel.config.experiment import Experiment
from fedkeel.config.files import reason
from fedkeel.config.section import make
from fedkeel.errors import InputError, MishapError, label
from fedkeel.local.settings import LocalSettings
from fedkeel.methods.server import Inheriting, ServerState
from fedkeel.methods.types import Message
from fedkeel.params import Layout
from fedkeel.record.checkpoints import Checkpoints
from fedkeel.record.folder import CHECKPOINTS, begun, complete
from fedkeel.record.runs import RunRecord
from fedkeel.runner.run import Run
from fedkeel.runner.simulation import Simulation

MODEL = "model.safetensors"


class _UnfitError(Exception):
    """Why a folder is of no use."""


def inherit(run: Run, earlier: Message | None) -> None:
    """Begin with that, if there is something."""
    if earlier is not None:
        run.core.model.inherit(earlier)


def remembered(experiment: Experiment, layout: Layout) -> Message | None:
    """What is taken over from the run that the experiment names; nothing where it names none.

    A folder that is of no use is refused.
    """
    rule = experiment.algorithm.rules()[1]
    if not isinstance(rule, Inheriting) or rule.earlier_run is None:
        return None
    try:
        return _memory(Path(rule.earlier_run), rule, layout, experiment.local)
    except _UnfitError as error:
        raise InputError(
            f"algorithm.earlier_run: {label(rule.earlier_run)} cannot be used, as {error}; name the folder of a "
            f"finished run of {experiment.algorithm.label} with the same model and options, and its last checkpoint"
        ) from None


def _memory(folder: Path, rule: Inheriting, layout: Layout, local: LocalSettings) -> Message:
    _check_run(folder, rule, local)
    _check_model(folder, layout)
    state = _last_state(folder)
    if len(state.w) != layout.size:
        raise _UnfitError(f"its model is another one (of {len(state.w):,} parameters, not {layout.size:,})")
    if missing := [name for name in rule.inherits if name not in state.memory]:
        raise _UnfitError(f"its server has not learnt what this one begins with ({', '.join(missing)})")
    return {name: state.memory[name] for name in rule.inherits}


def _check_run(folder: Path, rule: Inheriting, local: LocalSettings) -> None:
    """Refuse what is no finished run of the same server rule, with work that is counted alike."""
    try:
        if not folder.is_dir():
            raise _UnfitError("there is no such folder")
        if not begun(folder):
            raise _UnfitError("it holds no run")
        if not complete(folder):
            raise _UnfitError("its run is not finished")
        told = RunRecord.begun(folder).experiment
        other = make(AlgorithmSettings, _section(told, "algorithm"), "algorithm")
        work = make(LocalSettings, _section(told, "local"), "local")
    except OSError as error:
        raise _UnfitError(f"it cannot be read ({reason(error)})") from None
    except InputError as error:
        raise _UnfitError(f"it cannot be understood ({error})") from None
    if type(other.rules()[1]) is not type(rule):
        raise _UnfitError(f"its run is of {other.label}")
    if (work.by_step, work.batch_size) != (local.by_step, local.batch_size):
        counted = f"{'local.steps' if work.by_step else 'local.epochs'} and local.batch_size={work.batch_size}"
        raise _UnfitError(f"its work is counted otherwise ({counted})")


def _section(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def _check_model(folder: Path, layout: Layout) -> None:
    """Refuse a run whose model has other parts."""
    try:
        with safe_open(folder / MODEL, "pt") as file:
            theirs = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _UnfitError(f"its {MODEL} cannot be read ({reason(error)})") from None
    for part in (*layout.parameters, *layout.buffers):
        if theirs.get(part.name) != part.shape:
            found = list(theirs[part.name]) if part.name in theirs else "not there"
            raise _UnfitError(f"its model is another one ({part.name} is {found}, not {list(part.shape)})")


def _last_state(folder: Path) -> ServerState:
    """Of the server at the run's end."""
    try:
        found = Checkpoints(folder / CHECKPOINTS, None, Simulation.classes).load()
    except MishapError as error:
        raise _UnfitError(str(error)) from None
    if found is None:
        raise _UnfitError("it has no checkpoint")
    if found.passed_over:  # an older one is not of the run's end
        raise _UnfitError(found.passed_over[0])
    state: ServerState = found.state["core"]["model"]["state"]
    return state
