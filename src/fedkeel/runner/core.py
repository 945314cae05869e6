"""The server's core as an experiment describes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedkeel.config.experiment import Experiment
from fedkeel.config.userdraw import Draw
from fedkeel.data.federated import FederatedData
from fedkeel.local.work import seen
from fedkeel.methods.server import only_mean
from fedkeel.methods.types import Message
from fedkeel.params import FlatModel
from fedkeel.server.core import Core
from fedkeel.server.gate import Gate
from fedkeel.server.model import GlobalModel
from fedkeel.server.paces import Barrier, Concurrency, Pace, Periodic, Stream
from fedkeel.server.sampling import draw
from fedkeel.server.waves import Drawing, JobSettings
from fedkeel.wire.sizes import Sizes
from fedkeel.wire.transform import Chain


def held_classes(data: FederatedData) -> Callable[[], NDArray[np.int64]]:
    """How many classes each client has in its labels, [N], counted when it is asked for."""
    return lambda: (data.label_counts() > 0).sum(1)


def new_core(
    experiment: Experiment,
    samples: NDArray[np.int64],
    model: FlatModel,
    classes_held: Callable[[], NDArray[np.int64]],
    persists: bool = False,
) -> Core:
    """The server as the experiment has it, before the first round; `samples` [N] are all clients'.

    `persists` is for real machines: a round in which all of them fail is repeated.
    """
    local, rules, wire = experiment.local, experiment.algorithm.rules(), Chain(experiment.wire)
    client_rule, rule = rules
    settings = JobSettings(
        epochs=local.units,
        seen=partial(seen, local=local),
        lr=local.lr,
        rate=partial(local.rate, rounds=experiment.rounds),
        rounds=experiment.rounds,
        evaluate_every=experiment.evaluate_every,
        within=experiment.schedule.deadline_seconds,
        keep_models=experiment.evaluate_local,
        mean=only_mean(rule) if experiment.reduce else None,
        persists=persists,
    )
    return Core(
        settings,
        new_pace(experiment),
        GlobalModel(rules, model, samples, local.units, local.momentum, local.nesterov, local.curve),
        Gate(experiment.gate, model.layout, client_rule.uploads, len(samples), altered=bool(wire)),
        Sizes(client_rule, rule, model.layout, model.w.element_size(), wire, classes_held),
        samples,
        new_drawing(experiment, samples),
    )


def first_kept(experiment: Experiment, model: FlatModel) -> Message:
    """What every client keeps before its first job."""
    rule = experiment.algorithm.rules()[0]
    travels = model.w[model.layout.mask(rule.uploads).to(model.w.device)]
    return {**rule.initial(model.w.clone(), model.buffers), **Chain(experiment.wire).initial(travels)}


def new_drawing(experiment: Experiment, samples: NDArray[np.int64]) -> Drawing:
    """Of clients; how often each was drawn can count only where a round waits for all of them."""
    counted = experiment.pace == "barrier" and not experiment.schedule.over_select

    def of_wave(wave: int, count: int, free: NDArray[np.bool_] | None) -> Draw:
        return draw(experiment.seed, wave, experiment.sampling, samples, count, free, counted)

    return of_wave


def new_pace(experiment: Experiment) -> Pace:
    """The pace that the experiment asks for, or that of its method."""
    wanted, schedule = experiment.participants, experiment.schedule
    match experiment.pace:
        case "barrier":
            return Barrier(wanted, schedule.over_select)
        case "stream":
            return Stream(wanted, schedule.over_select)
        case "periodic":
            return Periodic(wanted, seconds=schedule.trigger_seconds, busy_limit=experiment.busy_limit)
        case "concurrency":
            return Concurrency(wanted, busy_limit=experiment.concurrency)
