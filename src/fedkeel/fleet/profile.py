"""What a job costs on a device."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.experiment import FleetSettings


@dataclass(frozen=True)
class Fleet:
    """Devices of equal speed, with links so fast that they do not matter."""

    seconds_per_sample: float

    @classmethod
    def build(cls, settings: FleetSettings, mean_samples: float, epochs: int) -> Fleet:
        """A fleet on which a job of average size takes `fastest_job_seconds`."""
        return cls(settings.fastest_job_seconds / (mean_samples * epochs))

    def job_seconds(self, samples: int, epochs: int) -> float:
        """From dispatch to arrival."""
        return self.seconds_per_sample * samples * epochs
