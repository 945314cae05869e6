"""What a job costs on a device, and how much of it gets done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.experiment import FleetSettings


@dataclass(frozen=True)
class Fleet:
    """Devices of equal speed, with links so fast that they do not matter; some run out of time."""

    settings: FleetSettings
    average_work: float
    """Samples times epochs of a job of average size."""

    def job_seconds(self, work: NDArray[np.int64]) -> NDArray[np.float64]:
        """From dispatch to arrival, for so many samples times epochs each; exact for a job of average size."""
        return self.settings.fastest_job_seconds * (work / self.average_work)

    def epochs_done(self, asked: int, clients: NDArray[np.int64], seed: int, round: int) -> NDArray[np.int64]:
        """[m], epochs that each of a round's clients gets done of those it was asked for.

        A share ρ of them, rounded at random, misses 1 to τ_max epochs: who is drawn for the round, how many for each
        device and round.
        """
        done = np.full(len(clients), asked, dtype=np.int64)
        missing = asked - 1 if self.settings.tau_max is None else self.settings.tau_max
        if not self.settings.rho or not missing:
            return done
        rng = streams.generator(seed, "stragglers", round)
        count = int(self.settings.rho * len(clients) + rng.random())
        late = rng.permutation(len(clients))[:count]
        drawn = streams.bits(streams.keys(seed, "partial work", round, clients[late]), 1)[:, 0]
        done[late] -= 1 + (drawn % np.uint64(missing)).astype(np.int64)
        return done
