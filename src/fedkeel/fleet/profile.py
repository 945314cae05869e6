"""What a job costs on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkeel.experiment import FleetSettings


@dataclass(frozen=True)
class Fleet:
    """Devices of equal speed, with links so fast that they do not matter."""

    settings: FleetSettings
    average_work: float
    """Samples times epochs of a job of average size."""

    def job_seconds(self, work: NDArray[np.int64]) -> NDArray[np.float64]:
        """From dispatch to arrival, for so many samples times epochs each; exact for a job of average size."""
        return self.settings.fastest_job_seconds * (work / self.average_work)
