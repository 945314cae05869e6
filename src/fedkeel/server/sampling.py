"""Who takes part in a round, or in another dispatch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.config.experiment import Experiment

Draw = tuple[NDArray[np.int64], NDArray[np.int64] | None]


def draw(
    experiment: Experiment,
    sizes: NDArray[np.int64],
    wave: int,
    count: int,
    free: NDArray[np.bool_] | None = None,
) -> Draw:
    """(The clients, ascending, among those that have data; how often each was drawn, where that may be more than once).

    `sizes` [N] are all clients' samples; `free` [N] says who can be given a job, if not everybody can. `count` of
    these are drawn, or all that are free. Who is drawn again works once.
    """
    rng = streams.generator(experiment.seed, "sampling", wave)
    eligible = np.flatnonzero(sizes) if free is None else np.flatnonzero((sizes > 0) & free)
    if experiment.sampling == "uniform":
        return np.sort(rng.choice(eligible, min(count, len(eligible)), replace=False)), None
    if not len(eligible):
        return eligible, np.zeros(0, dtype=np.int64)
    shares = sizes[eligible] / sizes[eligible].sum()
    return np.unique(rng.choice(eligible, count, p=shares), return_counts=True)
