"""How long a job takes on a device, how much of it gets done, and when the device is available."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, nextafter

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.errors import InputError
from fedkeel.world.fleet.generators import Column, speed_factors
from fedkeel.world.fleet.settings import FleetSettings, no_link
from fedkeel.world.fleet.traces import told_columns

Clients = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices, with one column [N] for each property in which they may differ."""

    seconds: Column
    """Seconds that training takes for the work in `unit`."""
    unit: Column
    """Samples times epochs, or samples of all mini-batches: those of a job of average size, of the device's own jobs
    where these take a fixed time, or 1."""
    uplink: Column
    """Bits per second; infinite where an upload takes no time."""
    downlink: Column
    latency: Column
    """Seconds that come on top of every download."""
    dropout: Column
    """The probability that a job is lost."""
    availability: Column
    """The share of a period, from its start, during which the device is on."""
    period: Column
    """The length of a period in seconds."""
    phase: Column
    """The time in seconds at which a period starts."""
    fixed: bool = False
    """Whether a device's jobs take the same time however many samples it has."""
    rho: float = 0.0
    tau_max: int | None = None

    @classmethod
    def of(cls, settings: FleetSettings, sizes: NDArray[np.int64], epochs: int, seed: int) -> Fleet:
        """Devices that hold so many samples each, for jobs of so many epochs; a device without data has no job."""
        clients = len(sizes)
        told = {} if settings.generated else told_columns(settings.profile, clients, seed)

        def column(name: str, default: float | None) -> Column:
            return told[name] if name in told else np.broadcast_to(np.inf if default is None else default, clients)

        uplink = column("uplink_mbps", settings.uplink_mbps)
        downlink = column("downlink_mbps", settings.downlink_mbps)
        if settings.bandwidth_divisor != 1 and np.isinf(uplink).all() and np.isinf(downlink).all():
            raise no_link(settings.bandwidth_divisor)
        period = column("availability_period", settings.availability_period)
        seconds, unit = _speed(settings, told, sizes, epochs, seed)
        return cls(
            seconds=seconds,
            unit=np.broadcast_to(unit, clients),
            uplink=uplink * 1e6 / settings.bandwidth_divisor,
            downlink=downlink * 1e6 / settings.bandwidth_divisor,
            latency=column("latency_seconds", settings.latency_seconds),
            dropout=column("dropout", settings.dropout),
            availability=column("availability", settings.availability),
            period=period,
            phase=told["availability_phase"] if "availability_phase" in told else _phases(period, seed),
            fixed=settings.job == "fixed",
            rho=settings.rho,
            tau_max=settings.tau_max,
        )

    def __len__(self) -> int:
        return len(self.seconds)

    def download_seconds(self, clients: Clients, nbytes: NDArray[np.int64] | int) -> Column:
        """[m], seconds to get so many bytes each from the server, including latency."""
        return 8.0 * nbytes / self.downlink[clients] + self.latency[clients]

    def upload_seconds(self, clients: Clients, nbytes: NDArray[np.int64] | int) -> Column:
        """[m], seconds to send so many bytes each to the server."""
        return 8.0 * nbytes / self.uplink[clients]

    def train_seconds(self, clients: Clients, work: NDArray[np.int64]) -> Column:
        """[m], seconds for so many samples times epochs each; exact for a job of average size, or of a fixed time."""
        return self.seconds[clients] * (work / self.unit[clients])

    def epochs_done(self, asked: int, clients: Clients, seed: int, wave: int) -> NDArray[np.int64]:
        """[m], epochs that each of a wave's clients gets done of those it was asked for.

        A share ρ of them, rounded at random, misses 1 to τ_max epochs. Which devices do is drawn for the wave; how many
        epochs they miss is drawn for each device and wave.
        """
        done = np.full(len(clients), asked, dtype=np.int64)
        missing = asked - 1 if self.tau_max is None else min(self.tau_max, asked - 1)
        if not self.rho or not missing:
            return done
        rng = streams.generator(seed, "stragglers", wave)
        count = int(self.rho * len(clients) + rng.random())
        late = rng.permutation(len(clients))[:count]
        drawn = streams.bits(streams.keys(seed, "partial work", wave, clients[late]), 1)[:, 0]
        done[late] -= 1 + (drawn % np.uint64(missing)).astype(np.int64)
        return done

    def fails_at(self, clients: Clients, seed: int, wave: int) -> Column:
        """[m], the share of its training after which a device fails, in [0, 1); NaN where it does not."""
        drawn = streams.uniform(streams.keys(seed, "lost jobs", wave, clients), 2)
        return np.where(drawn[:, 0] < self.dropout[clients], drawn[:, 1], np.nan)

    def available(self, time: float) -> NDArray[np.bool_] | None:
        """[N], which devices are on; None where all always are."""
        return None if self.always_on else time < self._window(time, slice(None))[0]

    def off_at(self, clients: Clients, time: float) -> Column:
        """[m], when devices that are on go off next; infinite where they never do."""
        return np.where(self.availability[clients] < 1, self._window(time, clients)[0], np.inf)

    def next_on(self, time: float, clients: Clients | None = None) -> float:
        """The first moment from `time` on at which some device is on, or some of these."""
        if self.always_on:
            return time
        ends, next_begins = self._window(time, slice(None) if clients is None else clients)
        if (time < ends).any():
            return time
        return max(float(next_begins.min()), nextafter(time, inf))  # never back, however short a period is

    @cached_property
    def always_on(self) -> bool:
        """Whether every device is always on."""
        return bool((self.availability == 1).all())

    @cached_property
    def fails(self) -> bool:
        """Whether some device may fail in the middle of a job."""
        return bool((self.dropout > 0).any())

    def _window(self, time: float, clients: Clients | slice) -> tuple[Column, Column]:
        """The end of the latest window that has begun by `time`, and the beginning of the one after it.

        All moments come from this one formula, so that they agree to the last bit: a device is on from a beginning
        on, and off from an end on.
        """
        phase, period = self.phase[clients], self.period[clients]
        number = np.floor((time - phase) / period)
        number += phase + (number + 1) * period <= time  # the quotient is rounded
        number -= phase + number * period > time
        begins, next_begins = phase + number * period, phase + (number + 1) * period
        ends = np.maximum(begins + self.availability[clients] * period, np.nextafter(begins, np.inf))
        return np.where(self.availability[clients] < 1, np.minimum(ends, next_begins), next_begins), next_begins


def _speed(
    settings: FleetSettings, told: Mapping[str, Column], sizes: NDArray[np.int64], epochs: int, seed: int
) -> tuple[Column, Column | float]:
    """The fleet's `seconds` and `unit`."""
    if "seconds_per_sample" in told:
        if settings.job == "fixed":
            raise InputError(
                f"fleet.profile: {settings.profile} has the column seconds_per_sample, but fleet.job=fixed does not "
                "count samples; use the column speed_factor instead, or set fleet.job=samples"
            )
        return told["seconds_per_sample"], 1.0
    factors = told["speed_factor"] if "speed_factor" in told else speed_factors(settings, len(sizes), seed)
    if settings.seconds_per_sample is not None:
        return factors * settings.seconds_per_sample, 1.0
    if settings.job == "fixed":
        return factors * settings.fastest_job_seconds, np.maximum(sizes, 1) * float(epochs)
    return factors * settings.fastest_job_seconds, float(sizes[sizes > 0].mean()) * epochs


def _phases(period: Column, seed: int) -> Column:
    return period * streams.uniform(streams.keys(seed, "availability", np.arange(len(period))), 1)[:, 0]
