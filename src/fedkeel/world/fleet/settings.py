"""How fast the devices and their links are, and when they fail."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from fedkeel.config.section import Section
from fedkeel.errors import InputError, unknown

GENERATORS = ("uniform", "lognormal", "tiers")
TRACES = (".csv", ".parquet")

# Bounds so wide that they hinder nobody, and so narrow that no sum of seconds overflows.
Seconds = Annotated[float, Field(gt=0, le=1e12)]
Latency = Annotated[float, Field(ge=0, le=1e12)]
Factor = Annotated[float, Field(gt=0, le=1e12)]
Mbps = Annotated[float, Field(ge=1e-6, le=1e12)]
Chance = Annotated[float, Field(ge=0, lt=1)]
OnShare = Annotated[float, Field(gt=0, le=1)]
Period = Annotated[float, Field(ge=1e-3, le=1e12)]
Ratio = Annotated[float, Field(ge=1, le=1e9)]


class FleetSettings(Section):
    """How fast the devices and their links are, how much of their work they get done, and when they are there."""

    profile: str = "uniform"
    """Who is how fast: a generator (uniform, lognormal, tiers), a trace (a file that ends in .csv or .parquet), or
    `module:function` that returns the columns of one."""
    speed_ratio: Ratio = 1.0
    """Of a generator: how many times as long the slowest device takes as the fastest."""
    tiers: Annotated[int, Field(ge=2, le=1_000_000)] = 3
    """Of the generator `tiers`: groups of devices that are equally fast."""
    fastest_job_seconds: Seconds = 10.0
    """Virtual seconds that a job of average size takes on the fastest device."""
    seconds_per_sample: Seconds | None = None
    """Virtual seconds that the fastest device needs for a sample in an epoch; takes the place of the former."""
    uplink_mbps: Mbps | None = None
    """Megabits a second from a device to the server; by default so many that an upload takes no time."""
    downlink_mbps: Mbps | None = None
    """Megabits a second from the server to a device, likewise."""
    bandwidth_divisor: Ratio = 1.0
    """Makes every link so many times slower."""
    latency_seconds: Latency = 0.0
    """Added once to every download."""
    dropout: Chance = 0.0
    """The chance that a job is lost, because its device fails while it trains."""
    availability: OnShare = 1.0
    """Share of every period during which a device is on. A job is lost when its device goes off."""
    availability_period: Period = 3600.0
    """Seconds; each device has a phase of its own."""
    rho: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of a round's devices that run out of time before their last epoch (FedLGA's ρ). With `local.steps`, here
    and below: mini-batches."""
    tau_max: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """How many epochs they miss at most: 1 to so many, all alike likely; by default all but one. FedLGA's τ is one
    more, so its τ_max = 4 is 3 here."""

    @field_validator("profile")
    @classmethod
    def _known(cls, profile: str) -> str:
        if profile in GENERATORS or profile.endswith(TRACES) or ":" in profile:
            return profile
        accepted = [*GENERATORS, f"a file that ends in {' or '.join(TRACES)}", "module:function"]
        raise unknown("fleet.profile", profile, accepted)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.generated and self.bandwidth_divisor != 1 and self.uplink_mbps is None and self.downlink_mbps is None:
            raise no_link(self.bandwidth_divisor)
        if not self.generated and self.speed_ratio != 1:
            raise InputError(
                f"fleet.speed_ratio: {self.speed_ratio:g} is not accepted with profile {self.profile}, which says how "
                f"fast each device is; accepted: 1, or one of the profiles {', '.join(GENERATORS)}"
            )
        return self

    @property
    def generated(self) -> bool:
        """Whether a generator says how fast the devices are."""
        return self.profile in GENERATORS


def no_link(divisor: float) -> InputError:
    """The error for a divisor of nothing."""
    return InputError(
        f"fleet.bandwidth_divisor: {divisor:g} is not accepted, as links take no time here; accepted: 1, or set "
        "fleet.uplink_mbps or fleet.downlink_mbps"
    )
