"""Pictures of the devices: how long their jobs take, how fast their links are, when they are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedkeel.report.curves import FORMATS
from fedkeel.report.save import check_suffix, save
from fedkeel.world.fleet.profile import Fleet

LANES = 50
"""Devices whose hours are drawn."""
_TRAINING, _EXCHANGE, _ON = "tab:blue", "tab:orange", "tab:green"
_ABOVE: dict[str, Any] = {
    "frameon": False,
    "fontsize": 8,
    "loc": "lower right",
    "bbox_to_anchor": (1, 1),
    "ncols": 2,
    "borderaxespad": 0.1,
}
_UNITS = ((7200, 3600, "h"), (300, 60, "min"), (0, 1, "s"))


@dataclass(frozen=True)
class JobCosts:
    """Seconds [m] of a job, of the devices that have data."""

    training: NDArray[np.float64]
    exchange: NDArray[np.float64]

    @classmethod
    def of(cls, fleet: Fleet, sizes: NDArray[np.int64], epochs: int, nbytes: int) -> JobCosts:
        """Of so many epochs over all samples, with a model of so many bytes that goes to the device and back."""
        devices = np.flatnonzero(sizes)
        exchange = fleet.download_seconds(devices, nbytes) + fleet.upload_seconds(devices, nbytes)
        return cls(fleet.train_seconds(devices, sizes[devices] * epochs), exchange)

    @property
    def job(self) -> NDArray[np.float64]:
        """Download, training and upload together."""
        return self.training + self.exchange


def fleet_profile(fleet: Fleet, costs: JobCosts, path: Path, title: str) -> None:
    """Jobs by device and their histogram; links where they differ, and hours where somebody is off at times."""
    check_suffix(path, FORMATS)
    draw: list[Callable[[Any, Fleet, JobCosts], None]] = [_jobs, _histogram]
    draw += [_links] if _differ(fleet.uplink) or _differ(fleet.downlink) else []
    draw += [] if fleet.always_on else [_hours]
    columns = 2 if len(draw) == 4 else len(draw)
    lines = len(draw) // columns
    figure = Figure(figsize=(4.6 * columns, 3.5 * lines + 0.3), layout="constrained")
    figure.suptitle(title, fontsize=11, parse_math=False)
    for axes, panel in zip(figure.subplots(lines, columns, squeeze=False).flat, draw, strict=True):
        panel(axes, fleet, costs)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    save(figure, path, dpi=150)


def _differ(values: NDArray[np.float64]) -> bool:
    return bool(values.min() < values.max())


def _jobs(axes: Any, _: Fleet, costs: JobCosts) -> None:
    order = np.argsort(costs.job, kind="stable")
    edges = np.arange(len(order) + 1) + 0.5
    axes.stairs(costs.training[order], edges, fill=True, color=_TRAINING, label="training")
    if costs.exchange.any():
        axes.stairs(
            costs.job[order], edges, baseline=costs.training[order], fill=True, color=_EXCHANGE, label="exchange"
        )
        axes.legend(**_ABOVE)
    axes.set(xlabel="device, from fastest job to slowest", ylabel="seconds of a job", xlim=edges[[0, -1]])
    axes.set_ylim(0, 1.05 * costs.job.max())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.25)


def _histogram(axes: Any, _: Fleet, costs: JobCosts) -> None:
    job = costs.job
    even = np.ptp(job) <= 1e-9 * job.max()  # all equal but for rounding: one bar
    axes.hist(job, bins=job[0] * np.array([0.95, 1.05]) if even else min(40, max(8, len(job) // 5)), color="0.65")
    for value, name, line in ((np.median(job), "median", "--"), (job.mean(), "mean", "-")):
        axes.axvline(value, color="black", linewidth=1.2, linestyle=line, label=f"{name} {value:.3g} s")
    axes.set(xlabel="seconds of a job", ylabel="devices", xlim=(0, 1.1 * job.max()))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.25)
    axes.legend(**_ABOVE)


def _links(axes: Any, fleet: Fleet, _: JobCosts) -> None:
    """Up against down; where one of them takes no time, the other one by device."""
    up, down = fleet.uplink / 1e6, fleet.downlink / 1e6
    if np.isfinite(up).all() and np.isfinite(down).all():
        axes.scatter(down, up, s=22, color=_EXCHANGE, alpha=0.6, linewidth=0)
        _scale(axes, "x", down, "downlink, Mbit/s")
        _scale(axes, "y", up, "uplink, Mbit/s")
    else:
        speed, name = (up, "uplink") if np.isfinite(up).all() else (down, "downlink")
        axes.stairs(np.sort(speed)[::-1], np.arange(len(speed) + 1) + 0.5, color=_EXCHANGE, linewidth=1.6)
        axes.set(xlabel="device, from fastest link to slowest")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _scale(axes, "y", speed, f"{name}, Mbit/s")
    axes.grid(alpha=0.25)


def _scale(axes: Any, which: str, values: NDArray[np.float64], label: str) -> None:
    """From zero, or logarithmic where values differ by more than a factor of ten."""
    if values.max() > 10 * values.min():
        axes.set(**{f"{which}scale": "log", f"{which}label": label})
    else:
        axes.set(**{f"{which}lim": (0, 1.1 * values.max()), f"{which}label": label})


def _hours(axes: Any, fleet: Fleet, _: JobCosts) -> None:
    """A lane for each device, coloured while it is on, over two of the longest periods."""
    shown = min(len(fleet), LANES)
    horizon = 2 * float(fleet.period[:shown].max())
    unit, name = next((unit, name) for least, unit, name in _UNITS if horizon >= least)
    for device in range(shown):
        axes.broken_barh(
            [(begin / unit, (end - begin) / unit) for begin, end in windows(fleet, device, horizon)],
            (device - 0.4, 0.8),
            color=_ON,
            linewidth=0,
        )
    which = f"device (the first {LANES} of {len(fleet):,})" if shown < len(fleet) else "device"
    axes.set(xlabel=f"time, {name}", ylabel=which, xlim=(0, horizon / unit), ylim=(shown - 0.5, -0.5))
    axes.set_title(f"on {np.mean(fleet.availability):.0%} of the time", fontsize=8, loc="right")


def windows(fleet: Fleet, device: int, until: float) -> list[tuple[float, float]]:
    """When a device is on, from 0 s on: (from, to), at most 200 of them."""
    one = np.array([device])
    found: list[tuple[float, float]] = []
    time = fleet.next_on(0.0, one)
    while time < until and len(found) < 200:
        end = min(float(fleet.off_at(one, time)[0]), until)
        found.append((time, end))
        time = fleet.next_on(end, one)
    return found
