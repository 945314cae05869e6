"""TensorBoard: a folder of event files, which `tensorboard --logdir` shows while the run goes on."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

from fedkeel.runner.sinks import Start
from fedkeel.sinks.memory import Known, Memory
from fedkeel.sinks.packages import needed
from fedkeel.sinks.scalars import Point, Scalars, settings
from fedkeel.sinks.tracker import WITHOUT_FOLDER, Tracker, run_name

NAME = "tensorboard"
_EVENTS = "events.out.tfevents."
_COMPARED = ("history/accuracy", "history/loss")
"""What the page of hyper-parameters shows about each run."""


class TensorBoard(Tracker):
    """Writes event files, with single precision, as TensorBoard's fast reader asks for.

    They are in `tensorboard/` inside the run folder. A folder that is given is for many runs: each gets a folder of its
    own in it. Numbers of rounds that a resumed run does again are marked as void.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        needed(NAME, "tensorboard")
        self._package = needed(NAME, "torch.utils.tensorboard")
        self._hparams = needed(NAME, "torch.utils.tensorboard.summary").hparams
        self._folder = None if folder is None else Path(folder)
        self._end: Any = None
        """What the page of hyper-parameters gets when the run is complete."""

    def _open(self, start: Start) -> int:
        self._memory = Memory(start.folder, NAME)
        parent = self._folder or (WITHOUT_FOLDER / NAME if start.folder is None else None)
        known = self._memory.recall("" if parent is None else str(parent.absolute()))
        if known is None:
            known = Known("", NAME) if parent is None else Known(str(parent.absolute()), _claimed(parent, start))
        folder = Path(known.where or start.folder or "") / known.id
        told = min(known.told, start.round) if any(folder.glob(f"{_EVENTS}*")) else 0
        _wait_for_later_name(folder)
        self._writer = self._package.SummaryWriter(str(folder), purge_step=told + 1)
        self._memory.keep(Known(known.where, known.id, told))
        first, begins, self._end = self._hparams(settings(start.experiment), dict.fromkeys(_COMPARED, 0.0))
        for each in (first, begins) if told == 0 else ():
            self._writer.file_writer.add_summary(each)
        self._writer.flush()
        return told

    def _write(self, told: Point) -> None:
        for name, value in told.scalars.items():
            self._writer.add_scalar(name, value, told.round)
        self._writer.flush()
        self._memory.told(told.round)

    def _complete(self, summary: Scalars) -> None:
        for name, value in summary.items():
            self._writer.add_scalar(name, value, self._told)
        self._writer.file_writer.add_summary(self._end)
        self._close("complete")

    def _broken(self, why: str, asked: bool) -> None:
        self._close(f"{'stopped' if asked else 'failed'}: {why}")

    def _close(self, said: str) -> None:
        self._writer.add_text("ended", said, self._told)
        self._writer.close()


def _claimed(parent: Path, start: Start) -> str:
    """The name of a new folder in `parent`, with a number appended where the name is taken."""
    name = run_name(start)
    for number in count(1):
        claimed = name if number == 1 else f"{name}-{number}"
        try:
            (parent / claimed).mkdir(parents=True)
        except FileExistsError:
            continue
        return claimed
    raise AssertionError


def _wait_for_later_name(folder: Path) -> None:
    """Event files are read by name, and names hold full seconds, so a new file must not share one with an old file."""
    seconds = [path.name.removeprefix(_EVENTS).split(".")[0] for path in folder.glob(f"{_EVENTS}*")]
    latest = max((int(each) for each in seconds if each.isdigit()), default=0)
    for _ in range(50):
        if int(time.time()) != latest:
            return
        time.sleep(0.05)
