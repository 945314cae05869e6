"""How fast the devices and their links are, and when they fail."""

from __future__ import annotations

from typing import Annotated, Literal, Self

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
    """Where the devices' speeds come from: a generator (`uniform`, `lognormal` or `tiers`), a trace (a .csv or .parquet
    file), or `module:function` that returns the columns of a trace."""
    speed_ratio: Ratio = 1.0
    """With a generator: how many times as long the slowest device takes as the fastest."""
    tiers: Annotated[int, Field(ge=2, le=1_000_000)] = 3
    """With the generator `tiers`: the number of groups of equally fast devices."""
    job: Literal["samples", "fixed"] = "samples"
    """Whether a job takes longer on clients with more samples (`samples`) or each device always takes the same time
    (`fixed`)."""
    fastest_job_seconds: Seconds = 10.0
    """The virtual seconds that the fastest device needs for a job of average size, or for any job with `job: fixed`."""
    seconds_per_sample: Seconds | None = None
    """The virtual seconds that the fastest device needs for one sample in one epoch. It replaces
    `fastest_job_seconds`."""
    uplink_mbps: Mbps | None = None
    """The speed from a device to the server in megabits per second. By default uploads take no time."""
    downlink_mbps: Mbps | None = None
    """The speed from the server to a device in megabits per second. By default downloads take no time."""
    bandwidth_divisor: Ratio = 1.0
    """Makes every link this many times slower."""
    latency_seconds: Latency = 0.0
    """The virtual seconds that are added once to every download."""
    dropout: Chance = 0.0
    """The probability that a job is lost because its device fails during training."""
    availability: OnShare = 1.0
    """The share of every period during which a device is on. A job is lost when its device goes off."""
    availability_period: Period = 3600.0
    """The length of a period in virtual seconds. Every device has its own phase."""
    rho: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of a round's devices that do not finish all epochs (ρ in FedLGA). With `local.steps`, mini-batches
    count instead of epochs."""
    tau_max: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """The most epochs that such a device misses; the number is drawn uniformly from 1 to this. The default is all
    epochs but one, and FedLGA's τ_max is one more."""

    @field_validator("profile")
    @classmethod
    def _known(cls, profile: str) -> str:
        if profile in GENERATORS or profile.endswith(TRACES) or ":" in profile:
            return profile
        also = f"a file that ends in {' or '.join(TRACES)}, or module:function"
        raise unknown("fleet.profile", profile, GENERATORS, also=also)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.generated and self.bandwidth_divisor != 1 and self.uplink_mbps is None and self.downlink_mbps is None:
            raise no_link(self.bandwidth_divisor)
        if self.job == "fixed" and self.seconds_per_sample is not None:
            raise InputError(
                f"fleet.seconds_per_sample={self.seconds_per_sample:g} is not used with fleet.job=fixed, where samples "
                "do not count; set fleet.fastest_job_seconds instead, or fleet.job=samples"
            )
        if not self.generated and self.speed_ratio != 1:
            raise InputError(
                f"fleet.speed_ratio={self.speed_ratio:g} is not used with fleet.profile={self.profile}, which says how "
                f"fast each device is; remove it, or choose one of the profiles {', '.join(GENERATORS)}"
            )
        return self

    @property
    def generated(self) -> bool:
        """Whether a generator says how fast the devices are."""
        return self.profile in GENERATORS


def no_link(divisor: float) -> InputError:
    """The error for a divisor where no link has a speed."""
    return InputError(
        f"fleet.bandwidth_divisor={divisor:g} has no effect, because links take no time here; remove it, or set "
        "fleet.uplink_mbps or fleet.downlink_mbps"
    )
