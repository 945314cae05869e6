"""Who takes part in a round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.experiment import Experiment

Draw = tuple[NDArray[np.int64], NDArray[np.int64] | None]


def draw(experiment: Experiment, sizes: NDArray[np.int64], round: int) -> Draw:
    """(The clients, ascending, among those that have data; how often each was drawn, where that may be more than once).

    `sizes` [N] are all clients' samples. Who is drawn again works once.
    """
    rng = streams.generator(experiment.seed, "sampling", round)
    eligible = np.flatnonzero(sizes)
    count = experiment.participants
    if experiment.sampling == "uniform":
        return np.sort(rng.choice(eligible, min(count, len(eligible)), replace=False)), None
    return np.unique(rng.choice(eligible, count, p=sizes[eligible] / sizes.sum()), return_counts=True)
