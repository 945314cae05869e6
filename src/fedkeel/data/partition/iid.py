"""Equal mixes for all."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.partition.apportion import apportion
from fedkeel.data.partition.base import Slots


class Iid(Slots):
    """Every client gets a uniformly random share of the samples (McMahan et al., 2017).

    Sizes are proportional to the weights up to rounding, at least 1: with `size_ratio` 1 they differ by at
    most one. Labels do not matter.
    """

    kind: Literal["iid"] = "iid"

    def _slots(
        self, labels: NDArray[np.int64], weights: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        sizes = apportion(len(labels), weights, at_least=1)
        return draw.permutation(np.repeat(np.arange(len(weights)), sizes))
