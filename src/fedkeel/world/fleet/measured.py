"""The devices of a run, from the rows that the run has left: a trace for `fleet.profile`.

A job tells three times. Training took `seconds_per_sample` times the samples that it went through. Each download took
the latency and its bytes over the downlink. The upload took its bytes over the uplink. The estimates are medians over
the jobs of a client, so a few odd jobs do not count. Of real machines, only the time of both ways together is known.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import InputError, counted
from fedkeel.local.settings import LocalSettings
from fedkeel.local.work import seen, survey_samples
from fedkeel.methods.client import ClientRule
from fedkeel.record.rows import EXCUSED, Arrival, Unfinished
from fedkeel.world.fleet import away
from fedkeel.world.fleet.generators import Column

OFFLINE = "went offline"
APART = 1.1
"""Downloads differ in size if the largest is at least so many times the smallest."""
LONG = 5.0
"""Messages tell how fast links are if they take so many times as long as an empty one."""
MOST = 400
"""Jobs of a client whose downloads are compared with each other."""
DIGITS = 9
"""Significant ones in the file."""
BITS = 8e-6
"""Megabits of a byte."""
LEAST, LARGEST = 1e-12, 1e12
"""Bounds of seconds and megabits per second in a trace."""
NAMED = 10
"""Clients that a sentence lists."""
SIMULATED = (
    "a run does not tell that apart from downloads; what it took is taken to be one answer of the slowest client"
)
REAL = (
    "a simulation counts their work on the answer, but not the message; a round is predicted to be shorter than it is "
    "by the time of an empty message and its answer"
)
"""What a reader should know of surveys."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One row per client, with the columns that `fleet.profile` understands and the run can tell."""

    columns: dict[str, Column]
    """By their names, [N] each; what takes no time on any device has no column."""
    jobs: NDArray[np.int64]
    """[N], how many jobs of each client arrived."""
    lost: NDArray[np.int64]
    """[N], how many were lost."""
    notes: tuple[str, ...]
    """What a reader should know of the estimates, in sentences."""

    @property
    def text(self) -> str:
        """As a CSV file."""
        out = StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(self.columns)
        rows.writerows([f"{value:.{DIGITS}g}" for value in row] for row in zip(*self.columns.values(), strict=True))
        return out.getvalue()


@dataclass(frozen=True)
class Link:
    """Seconds of a transfer: so many at any rate, and so many per byte."""

    latency: float
    per_byte: float
    told: bool = True
    """Whether the jobs tell the two apart."""


def trace(
    arrivals: Iterable[Arrival],
    unfinished: Iterable[Unfinished],
    clients: int,
    local: LocalSettings,
    asked: int | None = None,
    survey: ClientRule | None = None,
    waits: Mapping[int, float] | None = None,
    absences: Mapping[int, Sequence[away.Absence]] | None = None,
) -> Trace:
    """The trace of a run of so many clients.

    `waits` are the seconds, by client, that even a small message and its answer take; None in a simulated run.
    `absences` are the times at which it was away, where that is known.

    `asked` are the epochs of a job where devices take the time of all of them even if they complete fewer. `survey` is
    how clients answer where the method asks them before it sends jobs. In a simulated run, this delays the beginning
    of training; on real machines, jobs are sent when all have answered.
    """
    jobs, lost = _by_client(arrivals, clients), [job for job in unfinished if job.client < clients]
    speed = {client: seconds_per_sample(own, local, asked) for client, own in jobs.items()}
    delays = {} if survey is None or waits is not None else _survey_seconds(jobs, lost, speed, survey, local)
    devices = np.full((4, clients), np.nan)
    told, short = True, 0
    for client, own in jobs.items():
        if waits is not None and client in waits:
            both = exchange(own, waits[client])
            devices[:, client] = speed[client], both.per_byte, both.per_byte, both.latency
            short += not both.told
            continue
        up = upload_seconds(own)
        down = download(own, up, delays)
        devices[:, client] = speed[client], up, down.per_byte, down.latency
        told = told and down.told
    known = ~np.isnan(devices[0])
    if not known.any():
        raise InputError(
            "no job has arrived in this run, so it does not tell how fast its devices are; name a run with results"
        )
    for column in devices:
        column[~known] = np.median(column[known])
    arrived = np.array([len(jobs.get(client, ())) for client in range(clients)])
    until = max(job.arrived for own in jobs.values() for job in own)
    absent = away.longest(absences or {}, until)
    failed = [job.client for job in lost if job.why not in EXCUSED and not away.explains(absent.get(job.client), job)]
    gone = np.bincount(failed, minlength=clients)
    columns = {"seconds_per_sample": devices[0].clip(LEAST, LARGEST), **_links(*devices[1:])}
    columns |= away.windows(absent, clients, until)
    if gone.any():
        columns["dropout"] = gone / (gone + np.maximum(arrived, 1))  # no device loses all jobs for sure
    offline = sum(job.why == OFFLINE for job in lost)
    surveys = None if survey is None else REAL if waits is not None else SIMULATED
    notes = _notes(np.flatnonzero(~known).tolist(), told, offline, surveys, short)
    return Trace(columns, arrived, gone, (*notes, *away.notes(absent, absences or {})))


def seconds_per_sample(jobs: Sequence[Arrival], local: LocalSettings, asked: int | None = None) -> float:
    """Of training, without the wait for a fresh model."""
    units = np.array([job.epochs if asked is None else max(job.epochs, asked) for job in jobs], dtype=np.int64)
    work = seen(np.array([job.samples for job in jobs], dtype=np.int64), units, local)
    spent = np.array([job.finished - job.began - _waited(job) for job in jobs])
    return float(np.median(np.maximum(spent, 0) / np.maximum(work, 1)))


def upload_seconds(jobs: Sequence[Arrival]) -> float:
    """Per byte that a client sends; uploads have no latency."""
    per_byte = [max(job.arrived - job.finished, 0.0) / job.bytes_up for job in jobs if job.bytes_up]
    return float(np.median(per_byte)) if per_byte else 0.0


def download(jobs: Sequence[Arrival], up: float, delays: Mapping[float, float]) -> Link:
    """How long a client waits for what the server sends it; `up` are the seconds per byte that it sends.

    `delays` are the seconds, by the time of the dispatch, during which it had to wait for something else.

    A job with a fresh model has two downloads, of which the row tells the bytes together; an answer that there is none
    is not counted. Downloads of one size do not tell latency and bandwidth apart. Then the downlink is as fast as the
    uplink, or faster if downloads were, and the rest of the time is latency. Where uploads take no time, there is no
    latency.
    """
    times = np.array([1 if job.merged is None else 2 for job in jobs])
    size = np.array([job.bytes_down for job in jobs]) / times
    late = np.array([delays.get(job.dispatched, 0.0) for job in jobs])
    fetched = [job.began - job.dispatched + (0.0 if job.merged is None else _waited(job)) for job in jobs]
    spent = np.maximum(fetched - late, 0) / times
    if size.min() > 0 and size.max() >= APART * size.min():
        return _fitted(size, spent)
    whole, middle = float(np.median(spent)), float(np.median(size))
    if not middle:
        return Link(whole, 0.0)
    per_byte = min(whole / middle, up) if up else whole / middle
    return Link(max(0.0, whole - per_byte * middle), per_byte, told=not whole)


def exchange(jobs: Sequence[Arrival], wait: float) -> Link:
    """How long messages to a real machine and back take; an empty one and its answer take `wait` seconds.

    Real machines fetch their messages from time to time, so most of the time of a short message is waiting. What is
    left tells how fast links are, the same in both directions, if messages take several times as long as the waiting.
    Otherwise all is latency. The latency of both ways is counted at the download, as uploads have none in a simulation.
    A job that asks for a fresh model takes two messages and their answers, whether it gets one or not.
    """
    times = np.array([1 if job.asked is None else 2 for job in jobs])
    ways = [job.began - job.dispatched + job.arrived - job.finished + _waited(job) for job in jobs]
    spent = np.maximum(ways, 0) / times
    size = np.array([job.bytes_down + job.bytes_up for job in jobs]) / times
    whole, middle = float(np.median(spent)), float(np.median(size))
    if not middle or whole < LONG * wait:
        return Link(whole, 0.0, told=not whole)
    return Link(wait, (whole - wait) / middle)


def _fitted(size: Column, spent: Column) -> Link:
    """A line through most of the points (Theil and Sen), with no part below zero."""
    some = np.unique(np.linspace(0, len(size) - 1, MOST).astype(int)) if len(size) > MOST else np.arange(len(size))
    first, second = np.array([*combinations(some.tolist(), 2)]).T
    differ = np.abs(size[second] - size[first]) >= (APART - 1) * size.min()
    rise = (spent[second] - spent[first])[differ] / (size[second] - size[first])[differ]
    per_byte = max(0.0, float(np.median(rise)))
    latency = float(np.median(spent - per_byte * size))
    return Link(latency, per_byte) if latency > 0 else Link(0.0, float(np.median(spent / size)))


def _waited(job: Arrival) -> float:
    """Seconds until a fresh model was there, or the answer that there is none."""
    went_on = job.resumed if job.merged is None else job.merged
    return 0.0 if went_on is None or job.asked is None else went_on - job.asked


def _links(up: Column, down: Column, latency: Column) -> dict[str, Column]:
    """Of those that take any time."""
    found = {}
    for name, per_byte in (("uplink_mbps", up), ("downlink_mbps", down)):
        if per_byte.any():
            found[name] = (BITS / np.maximum(per_byte, BITS / LARGEST)).clip(1e-6, LARGEST)
    return {**found, "latency_seconds": latency} if latency.any() else found


def _by_client(arrivals: Iterable[Arrival], clients: int) -> dict[int, list[Arrival]]:
    found: dict[int, list[Arrival]] = {}
    for job in arrivals:
        if job.client >= clients:
            raise InputError(
                f"a job of client {job.client} has arrived, but the experiment has {clients} clients; use a copy of "
                "the run folder whose files belong together"
            )
        found.setdefault(job.client, []).append(job)
    return found


def _survey_seconds(
    jobs: Mapping[int, Sequence[Arrival]],
    lost: Sequence[Unfinished],
    speed: Mapping[int, float],
    survey: ClientRule,
    local: LocalSettings,
) -> dict[float, float]:
    """By the time of a dispatch, how long its slowest client takes to answer one survey."""
    samples = np.array([own[0].samples for own in jobs.values()], dtype=np.int64)
    work = dict(zip(jobs, survey_samples(samples, survey, local).tolist(), strict=True))
    sent = [(job.client, job.dispatched) for own in jobs.values() for job in own]
    sent += [(job.client, job.dispatched) for job in lost if job.client in jobs]
    found: dict[float, float] = {}
    for client, dispatched in sent:
        found[dispatched] = max(found.get(dispatched, 0.0), speed[client] * work[client])
    return found


def _notes(unseen: Sequence[int], told: bool, offline: int, surveys: str | None, short: int) -> tuple[str, ...]:
    found = []
    if unseen:
        who = ", ".join(map(str, unseen[:NAMED]))
        more = f" and {len(unseen) - NAMED} more" if len(unseen) > NAMED else ""
        verb = "have" if len(unseen) > 1 else "has"
        found.append(
            f"{counted(len(unseen), 'client')} finished no job and {verb} the medians of the others: {who}{more}"
        )
    if surveys is not None:
        found.append(f"the method asks its clients before it sends jobs, and {surveys}")
    if not told:
        found.append(
            "the downloads of a client were all equally large, so latency and bandwidth cannot be told apart; "
            "downlinks are taken to be as fast as uplinks or faster, and the rest of the time is latency"
        )
    if short:
        found.append(
            f"the messages of {counted(short, 'client')} took not much longer than empty ones, so they do not tell "
            "how fast links are; all of that time is latency, and a larger model is predicted to be faster than it is"
        )
    if offline:
        found.append(
            f"{counted(offline, 'job')} ended because a device was switched off; when devices are on cannot be told "
            "from a run, so these jobs count as lost"
        )
    return tuple(found)
