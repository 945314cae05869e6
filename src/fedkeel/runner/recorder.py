"""The sink that leaves a run folder: rows, checkpoints, the summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from fedkeel.errors import DivergenceError, FedkeelError, StoppedError
from fedkeel.record.checkpoints import Held
from fedkeel.record.folder import RunFolder
from fedkeel.record.rows import RoundEnd
from fedkeel.runner.run import Run
from fedkeel.runner.sinks import Sink, SinkError, Start
from fedkeel.runner.watch import Watch

SELDOM = 50
"""States are held in memory at most this share of the time."""


class Recorder(Sink):
    """Writes rounds and checkpoints into a folder.

    Between checkpoints, it holds the state after a recent round in memory, and writes it when a round is given up, and
    before the last checkpoint: a finished run is extended from there.
    """

    def __init__(self, run: Run, folder: RunFolder, watch: Watch) -> None:
        self._run, self._folder, self._watch = run, folder, watch
        self._settings = run.experiment.checkpoint
        self._saved = perf_counter()
        self._held = deque[Held](maxlen=2)
        """Two, as a run may end before it gets to another round than the last one's."""
        self._hold_next = 0.0
        """When it is worth while to hold the next state."""
        self._rounds = 0
        """That were recorded since this process began."""
        self._behind = False
        """Whether rounds have been recorded since the last checkpoint."""
        self._rested = False
        """Whether everything is recorded that came after the last round."""

    def begin(self, start: Start) -> None:
        """Write down what the clients hold."""
        self._folder.add_labels(self._run.describe_labels)

    def round(self, end: RoundEnd) -> None:
        """Write down a round."""
        self._folder.add(end)
        self._rounds += 1
        self._behind = True

    def save_if_due(self, round: int) -> None:
        """Write down the state where that is due, or where the run is to stop here."""
        rounds, seconds = self._settings.rounds, self._settings.seconds
        by_round = rounds is not None and round % rounds == 0
        by_time = seconds is not None and perf_counter() - self._saved >= seconds
        if self._run.over:
            return
        self._hold(round)
        if not (by_round or by_time or self._watch.due):
            return
        self.save()
        if self._watch.due:
            raise self._watch.stopped(f"after round {round}", self._folder.advice)

    def _hold(self, round: int) -> None:
        """Keep the state in memory, unless that was done a moment ago; before the last round, in any case.

        A state that cannot be written is refused after the first round.
        """
        begun = perf_counter()
        if begun >= self._hold_next or round == self._run.experiment.rounds - 1:
            self._held.append(self._folder.hold(round, self._run.snapshot()))
            done = perf_counter()
            self._hold_next = done + SELDOM * (done - begun)

    def give_up(self, when: str) -> StoppedError:
        """A round was interrupted: write the last state that is known; the error that says so."""
        with suppress(FedkeelError):  # a disk that is full does not keep the run from stopping
            for held in [*self._held][-1:]:
                self._folder.write_held(held)
        in_vain = not (self._watch.stop.asked or self._rounds)
        more = "no round was over in this time, so give it more; " if in_vain else ""
        return self._watch.stopped(when, f"{more}the round will be repeated; {self._folder.advice}")

    def save_last(self) -> None:
        """Write down the state after the last round, and one from before it, by which the run can be extended."""
        for held in [held for held in self._held if held.number < self._run.round - 1][-1:]:
            self._folder.write_held(held)
        self.save()

    def save(self) -> None:
        """Write down the state after the last round."""
        self._folder.checkpoint(self._run.round - 1, self._run.snapshot())
        self._saved = perf_counter()
        self._behind = False

    def rest(self) -> None:
        """Write down what came after the last round."""
        if not self._rested:
            self._rested = True
            self._folder.add_rest(self._run.rest())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which makes the folder complete."""
        self._folder.finish(summary)

    def abort(self, error: BaseException) -> None:
        """Save what can be saved, and say how to go on."""
        if isinstance(error, StoppedError | KeyboardInterrupt):
            return
        if not isinstance(error, FedkeelError):
            error.add_note(self._folder.advice)
            return
        with suppress(FedkeelError):  # unless the disk is to blame
            if not isinstance(error, SinkError):
                self.rest()  # it shows what led to the error
            elif self._behind:
                self.save()  # the rounds themselves are sound
        if self._folder.way_on not in str(error):
            stands = self._folder.last if isinstance(error, DivergenceError) else self._folder.advice
            error.advice = f"; {stands}"
            error.args = (f"{error}{error.advice}",)
