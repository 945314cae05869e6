"""What the sinks for trackers of experiments have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkeel.errors import StoppedError, words
from fedkeel.record.rows import RoundEnd
from fedkeel.record.subject import Subject
from fedkeel.runner.sinks import Sink, Start
from fedkeel.sinks.scalars import Point, Scalars, earlier, point, summary_scalars

WITHOUT_FOLDER = Path("runs")
"""Where the logs of runs without a run folder go."""


class Tracker(Sink):
    """Logs every round once, also if the run is stopped, killed and resumed.

    Rounds that the tracker missed because the run went on without this sink are read from the run folder.
    """

    _told = 0
    """The last round that the tracker has."""

    def begin(self, start: Start) -> None:
        """Open the log, or continue it."""
        self._told = self._open(start)
        for missed in earlier(start, self._told):
            self._tell(missed)

    def round(self, end: RoundEnd) -> None:
        """Log a round, unless the tracker has it already."""
        if end.round > self._told:
            self._tell(point(end))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the summary, and close the log."""
        self._complete(summary_scalars(summary))

    def abort(self, error: BaseException) -> None:
        """Close the log, marked as that of a run which ended early."""
        said = words(error) or type(error).__name__
        self._broken(said, asked=isinstance(error, StoppedError | KeyboardInterrupt))

    def _tell(self, told: Point) -> None:
        self._write(told)
        self._told = told.round

    @abstractmethod
    def _open(self, start: Start) -> int:
        """Open the log; returns the last round that it has."""

    @abstractmethod
    def _write(self, told: Point) -> None:
        """Add a round."""

    @abstractmethod
    def _complete(self, summary: Scalars) -> None:
        """The run is complete."""

    @abstractmethod
    def _broken(self, why: str, asked: bool) -> None:
        """The run ended early; `asked` if the user wanted that."""


def run_name(start: Start) -> str:
    """What a tracker calls the run: like its folder."""
    return start.folder.absolute().name if start.folder is not None else Subject(start.experiment).folder_name
