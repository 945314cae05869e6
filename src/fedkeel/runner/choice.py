"""The executor of a run: as asked for, as it was last time, or as measured now."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError
from fedkeel.local.build import Workshop
from fedkeel.local.cluster import leases as cluster
from fedkeel.local.executor import Executor
from fedkeel.local.executors.agreement import objection
from fedkeel.local.executors.choose import SERIAL, Choice, settle
from fedkeel.local.executors.processes import unavailable
from fedkeel.local.machine import cores
from fedkeel.local.native import library
from fedkeel.local.settings import ExecutorSettings
from fedkeel.params import FlatModel
from fedkeel.record.machine import INSTRUCTION_SET
from fedkeel.runner.core import first_kept, held_classes, new_core
from fedkeel.runner.remembered import place, recall, remember
from fedkeel.runner.steps import announce
from fedkeel.server import events as ev
from fedkeel.wire.orders import Order, Same
from fedkeel.world.desk import Desk

PATIENCE = 50
"""While an executor is chosen, one answer to a survey is used again for so many questions."""


@contextmanager
def with_workers(settings: ExecutorSettings) -> Iterator[None]:
    """Keeps workers of a cluster from one executor to the next, where such are asked for."""
    if settings.kind == "ray":
        announce("connecting to Ray")
    with cluster.held(settings) as pool:
        if pool is not None:
            announce(pool.words)
        yield


def choose(experiment: Experiment, workshop: Workshop, flat: FlatModel, workers: int = 0) -> Choice:
    """The executor that was asked for; what is left open as it was last time, or else as measured now.

    `workers` are those of a cluster if they are not there yet.
    """
    asked = experiment.executor.completed
    no_workers = unavailable() if experiment.device == "cpu" else "workers are for device cpu"
    if asked.kind == "processes" and no_workers:
        raise InputError(
            f"executor.kind: processes cannot be used here, as {no_workers}; use serial, vectorised or threads"
        )
    if asked.kind == "ray" and experiment.device != "cpu":
        raise InputError(
            f"executor.kind: ray cannot be used with device={experiment.device}; use device=cpu, and executor.gpus=1 "
            "for workers that train on GPUs"
        )
    if asked.settled and not (asked.stack or asked.native or asked.channels_last):
        return settle(workshop, asked, [], experiment.rounds, workers=1)  # there is nothing to measure or to compare
    announce("choosing an executor")
    asks = workshop.executor(SERIAL)
    orders = first_orders(experiment, workshop.data, flat, asks)
    asks.close()
    if asked.settled:
        return settle(workshop, asked, orders, experiment.rounds, workers=1)
    if asked.kind == "ray":
        workers = workers or cluster.workers(asked)
    else:
        workers = 1 if no_workers else asked.workers or cores()
    kept = place(experiment, workshop.data, workshop.module, workers)
    choice = recall(kept)
    possible = choice is not None and not (choice.settings.kind == "processes" and no_workers)
    if choice is None or not possible or objection(workshop, choice.settings, orders):
        choice = settle(workshop, asked, orders, experiment.rounds, workers)
        remember(kept, choice)
    return choice


def reasons(choice: Choice) -> dict[str, Any]:
    """What the summary says of a choice."""
    probe = {"seconds_per_round": choice.seconds, "refused": choice.refused}
    isa = instruction_set(choice.settings)
    return {
        "probe": probe,
        "why_not_stacked": choice.why_not_stacked,
        "why_not_native": choice.why_not_native,
        INSTRUCTION_SET: isa,
    }


def instruction_set(settings: ExecutorSettings) -> str | None:
    """Of the native kernels that an executor uses, if it does."""
    found = library.load() if settings.native else None
    return found.isa if found else None


def first_orders(experiment: Experiment, data: FederatedData, model: FlatModel, executor: Executor) -> Sequence[Order]:
    """Jobs like those of the first round, for an executor to look at beforehand.

    Everybody is taken to be on. Surveys take one step, and the first answer serves many questions, but not for ever: a
    plan may ask until answers change.
    """
    core = new_core(experiment, data.sizes, model, held_classes(data))
    desk, rule = Desk(executor, inf), core.model.client_rule
    first = first_kept(experiment, model)
    event: ev.Event = ev.Wake(0.0)
    asked = 0
    with warnings.catch_warnings(action="ignore"):  # of what is only tried
        while True:
            command = core.on(event)[0]
            assert isinstance(command, ev.Survey | ev.Send)
            orders = command.orders.but(kept=Same(first, len(command.orders)))
            if isinstance(command, ev.Send):
                return orders
            if not asked % PATIENCE:
                event = ev.Answered(0.0, desk.ask(orders, command.told, rule, 1))
            asked += 1
