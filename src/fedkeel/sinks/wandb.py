"""Weights & Biases: offline files, to be uploaded later with `wandb sync`, or a server."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

from fedkeel.errors import InputError, shown, unknown
from fedkeel.runner.sinks import Start
from fedkeel.sinks.memory import Known, Memory
from fedkeel.sinks.packages import needed
from fedkeel.sinks.scalars import Point, Scalars, settings
from fedkeel.sinks.tracker import WITHOUT_FOLDER, Tracker, run_name

NAME = "wandb"
MODES = ("offline", "online")
_QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_save_requirements": False,
}
"""Print nothing, and record nothing about the machine and the user's code, where the version has these settings."""


class WeightsAndBiases(Tracker):
    """Writes one run of a project, into the folder `wandb/` inside the run folder, or inside `folder`.

    W&B cannot append to a run offline, and a process that is killed leaves nothing of its last seconds. So a run that
    is resumed offline writes its log anew from the run folder, under the same id, and removes the earlier one. W&B's
    own error reports are off unless the environment variable WANDB_ERROR_REPORTING says otherwise.
    """

    def __init__(self, project: str = "fedkeel", mode: str = "offline", folder: str | Path | None = None) -> None:
        if mode not in MODES:
            raise unknown("sinks", mode, MODES, "mode of wandb")
        if not isinstance(project, str) or not project.strip() or set(project) & set("/\\#?%:"):
            raise InputError(f"sinks: the wandb project must be a name without / : \\ # ? %; got {shown(project)}")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._package = needed(NAME, NAME)
        self._project, self._mode, self._folder = project, mode, None if folder is None else Path(folder)

    def begin(self, start: Start) -> None:
        """Open the log, and remove the one that it replaces."""
        super().begin(start)
        log = Path(self._run.dir).parent
        for earlier in log.parent.glob(f"offline-run-*-{self._run.id}*"):
            if earlier != log:
                rmtree(earlier, ignore_errors=True)

    def _open(self, start: Start) -> int:
        memory, where = Memory(start.folder, NAME), f"{self._mode}:{self._project}"
        known = memory.recall(where) or Known(where, uuid4().hex)
        home = self._folder or start.folder or WITHOUT_FOLDER
        home.mkdir(parents=True, exist_ok=True)  # wandb would take another folder
        self._run = self._package.init(
            project=self._project,
            mode=self._mode,
            dir=str(home.absolute()),
            id=known.id,
            name=run_name(start),
            resume="allow" if self._mode == "online" else None,
            reinit="create_new",
            config=settings(start.experiment),
            settings=self._quiet(),
        )
        memory.keep(known)
        return int(self._run.step) - 1 if self._mode == "online" else 0

    def _quiet(self) -> Any:
        kind = self._package.Settings
        return kind(**{name: value for name, value in _QUIET.items() if name in kind.model_fields})

    def _write(self, told: Point) -> None:
        self._run.log(told.scalars, step=told.round, commit=True)

    def _complete(self, summary: Scalars) -> None:
        self._close(summary, "complete", 0)

    def _broken(self, why: str, asked: bool) -> None:
        self._close({}, f"{'stopped' if asked else 'failed'}: {why}", 1)

    def _close(self, summary: Scalars, said: str, code: int) -> None:
        self._run.summary.update({**summary, "ended": said})
        self._run.finish(exit_code=code)
