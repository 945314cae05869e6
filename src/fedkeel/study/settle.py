"""How the runs of a study train, and what each takes in time and memory: measured before the first of them."""

from __future__ import annotations

import copy
import json
import resource
import sys
from dataclasses import replace
from hashlib import sha256
from time import perf_counter

import numpy as np
import torch

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.local.build import Workshop
from fedkeel.local.cluster import leases as cluster
from fedkeel.local.executors.choose import SERIAL, Choice, round_seconds
from fedkeel.local.settings import ExecutorSettings
from fedkeel.local.work import whole_jobs
from fedkeel.params import FlatModel
from fedkeel.runner.choice import choose, first_orders, with_workers
from fedkeel.runner.earlier import remembered
from fedkeel.runner.prepare import prepare
from fedkeel.runner.threads import threads
from fedkeel.study.tasks import Estimate
from fedkeel.wire.transform import Chain
from fedkeel.world.fleet.profile import Fleet

_TESTED = 512
"""Samples by which the time of an evaluation is measured."""


def key(experiment: Experiment) -> str:
    """Runs with the same key train in the same way: they differ only in name and seed."""
    told = experiment.model_dump(mode="json", exclude={"name", "seed"})
    return sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def estimate(experiment: Experiment, workers: int = 0) -> Estimate:
    """The executor that is best here, and what a run takes with it.

    With `workers`, its stacks are such that so many workers of a cluster could share a round.
    """
    experiment, data, module = prepare(experiment)
    rule, _ = experiment.algorithm.rules()
    flat = FlatModel(module)
    remembered(experiment, flat.layout)  # refuses a folder that is of no use
    workshop = Workshop(
        copy.deepcopy(module),
        data,
        rule,
        experiment.local,
        experiment.seed,
        Chain(experiment.wire),
        experiment.objective,
    )
    with threads(experiment.threads), with_workers(experiment.executor):
        if workers and has_open_stacks(experiment):
            choice = _in_process(choose(_on_cluster(experiment), workshop, flat, workers))
        else:
            choice = choose(experiment, workshop, flat)
        seconds_of_round = _round_seconds(experiment, workshop, choice, flat)
        test_seconds = _test_seconds(workshop, choice, flat)
    rounds = _rounds(experiment, data, workshop.bytes)
    seconds = rounds * (seconds_of_round + test_seconds / experiment.evaluate_every)
    return Estimate(choice.settings, seconds, _memory())


def has_open_stacks(experiment: Experiment) -> bool:
    """Whether stacks may be chosen for the workers that there are."""
    return experiment.executor.kind == "auto" and experiment.executor.stack is None


def _on_cluster(experiment: Experiment) -> Experiment:
    told = {**experiment.executor.model_dump(), "kind": "ray"}
    return experiment.replace(executor=ExecutorSettings(**told))


def _in_process(choice: Choice) -> Choice:
    """The same stacks on one core."""
    kind = "vectorised" if choice.settings.stack else "serial"
    told = {**choice.settings.model_dump(), "kind": kind, "workers": None}
    return replace(choice, settings=ExecutorSettings(**told))


def _rounds(experiment: Experiment, data: FederatedData, nbytes: int) -> float:
    """The estimated number of rounds where the virtual clock ends a run; faults and availability are not counted."""
    if experiment.limit_seconds is None:
        return experiment.rounds
    samples, epochs = whole_jobs(data.sizes, experiment.local)
    fleet = Fleet.of(experiment.fleet, samples, epochs, experiment.seed)
    devices = np.flatnonzero(data.sizes)
    jobs = fleet.train_seconds(devices, samples[devices] * epochs)
    jobs = jobs + fleet.download_seconds(devices, nbytes) + fleet.upload_seconds(devices, nbytes)
    wanted = experiment.participants
    match experiment.pace:
        case "barrier":  # the slowest of those that are drawn
            seconds = float(np.quantile(jobs, wanted / (wanted + 1)))
        case "concurrency":
            seconds = float(jobs.mean()) * wanted / experiment.concurrency
        case "periodic":
            seconds = max(experiment.schedule.trigger_seconds, float(jobs.mean()) * wanted / experiment.busy_limit)
        case _:
            seconds = float(jobs.mean())
    return min(experiment.rounds, experiment.limit_seconds / max(seconds, 1e-9))


def _round_seconds(experiment: Experiment, workshop: Workshop, choice: Choice, flat: FlatModel) -> float:
    """Seconds of a round's training, as measured for the choice, or as measured now."""
    known = choice.seconds.get(choice.settings.label)
    if known is not None:
        return known
    asks = workshop.executor(SERIAL)
    try:
        workers = cluster.workers(choice.settings) if choice.settings.kind == "ray" else None
        return round_seconds(workshop, choice.settings, first_orders(experiment, workshop.data, flat, asks), workers)
    finally:
        asks.close()


def _test_seconds(workshop: Workshop, choice: Choice, flat: FlatModel) -> float:
    executor = workshop.executor(choice.settings)
    try:
        count = len(workshop.data.test.y)
        some = torch.arange(min(count, _TESTED))
        executor.evaluate(flat.w, flat.buffers, some[:8])
        begun = perf_counter()
        executor.evaluate(flat.w, flat.buffers, some)
        return (perf_counter() - begun) * count / max(1, len(some))
    finally:
        executor.close()


def _memory() -> int:
    """The most bytes that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
