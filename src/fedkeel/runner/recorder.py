"""What is kept of a run while it goes on, and what a user is told when it ends before time."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from time import perf_counter

from fedkeel.errors import DivergenceError, FedkeelError, StoppedError
from fedkeel.record.folder import RunFolder
from fedkeel.runner.simulation import Simulation
from fedkeel.runner.stopping import Stop
from fedkeel.server.progress import RoundEnd


class Keeper(AbstractContextManager["Keeper"]):
    """Writes rounds and checkpoints into a folder, and hears the wish to stop while it is entered."""

    def __init__(self, simulation: Simulation, folder: RunFolder, stop: Stop) -> None:
        self._simulation, self._folder, self._stop = simulation, folder, stop
        self._settings = simulation.experiment.checkpoint
        self._saved = perf_counter()
        self._tried = False

    def add(self, end: RoundEnd) -> None:
        """Write down a round."""
        self._folder.add(end)

    def save_if_due(self, round: int) -> None:
        """Write down the state where that is due, or where the run is to stop here."""
        rounds, seconds = self._settings.rounds, self._settings.seconds
        by_round = rounds is not None and round % rounds == 0
        by_time = seconds is not None and perf_counter() - self._saved >= seconds
        if self._simulation.over:
            return
        if not (by_round or by_time or self._stop.asked):
            if not self._tried:  # early, so that a state that cannot be written costs no more than a round
                self._folder.check(self._simulation.snapshot())
                self._tried = True
            return
        self.save(round)
        if self._stop.asked:
            raise StoppedError(f"stopped after round {round}; {self._folder.standing}")

    def save(self, round: int) -> None:
        """Write down the state."""
        self._folder.checkpoint(round, self._simulation.snapshot())
        self._saved = perf_counter()

    def __enter__(self) -> Keeper:
        self._stop.heard = True
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._stop.heard = False
        if not isinstance(error, FedkeelError) or isinstance(error, StoppedError):
            return
        with suppress(FedkeelError):  # what led to it, unless the disk is to blame
            self._folder.add_rest(self._simulation.round, *self._simulation.rest())
        if self._folder.way_on not in str(error):
            stands = self._folder.last if isinstance(error, DivergenceError) else self._folder.standing
            error.args = (f"{error}; {stands}",)
