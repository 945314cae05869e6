"""`run` and `resume`: from a description, and possibly the user's own data and model, to a result."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError, StoppedError
from fedkeel.local.build import Workshop
from fedkeel.local.evaluation import Evaluator
from fedkeel.params import FlatModel, Layout
from fedkeel.record.folder import RunFolder, check_free, check_resumable, check_space
from fedkeel.record.rows import Evaluation, RoundEnd
from fedkeel.record.schema import EXPERIMENT
from fedkeel.runner import earlier, folders
from fedkeel.runner.choice import choose, reasons
from fedkeel.runner.clients import best_model, own_model, save, score_clients, tests_clients
from fedkeel.runner.drive import drive
from fedkeel.runner.prepare import prepare
from fedkeel.runner.recorder import Recorder
from fedkeel.runner.scores import client_scores, column
from fedkeel.runner.simulation import Simulation
from fedkeel.runner.sinks import Sink, Sinks, Start, checked
from fedkeel.runner.stopping import Stop
from fedkeel.runner.summary import summarise
from fedkeel.runner.threads import threads
from fedkeel.wire.transform import Chain

MOST_CLASSES = 100
"""Of which the summary tells metrics one by one."""


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    experiment: Experiment
    summary: dict[str, Any]
    """What `summary.json` holds."""
    history: list[Evaluation]
    model: nn.Module
    """The trained global model; where the method has none (FedGH), the trained header on the first body."""
    data: FederatedData
    out: Path | None
    """The run folder, where one was asked for."""
    simulation: Simulation
    """As it ended."""
    finetuned_accuracy: NDArray[np.float64] | None
    """The first metric of each client's own model after fine-tuning, on its own test rows, where that was done."""

    @property
    def accuracy(self) -> float:
        """Of the final model on the test set; without a global model, the mean over the clients' own."""
        return float("nan") if (value := self.history[-1].accuracy) is None else value

    @property
    def metrics(self) -> dict[str, float | None]:
        """Of the final model on the test set, by name; the first is the one by which models are compared."""
        return dict(self.history[-1].metrics)

    def evaluate_clients(
        self, clients: Sequence[int] | None = None, *, metric: str | None = None
    ) -> NDArray[np.float64]:
        """A metric on each client's own test rows, by default the task's first; NaN for a client without such rows.

        Of the final model, or where the method gives clients their own (FedGH), of these. Where the test set is a
        common one that belongs to no client (`data.clients_have_tests` is False), each client's result is estimated: on
        test samples drawn in the proportions of its training labels.
        """
        chosen = range(len(self.data)) if clients is None else clients
        for client in chosen:
            self._check(client)
        test = Evaluator(self.model, self.data, self.simulation.task).score
        models = map(self.simulation.own, chosen)
        return column(client_scores(chosen, models, test, self.data, self.experiment.seed), metric)

    @property
    def best_model(self) -> nn.Module | None:
        """The global model of the best evaluation: on the validation set where there is one, else on the test set."""
        return best_model(self.simulation, self.model)

    def client_model(self, client: int) -> nn.Module:
        """A client's own model, not fine-tuned: a copy of the global one, unless the method has others (FedGH)."""
        self._check(client)
        return own_model(self.simulation, self.model, client)

    def _check(self, client: int) -> None:
        if not 0 <= client < len(self.data):
            raise InputError(f"clients: {client} is not accepted; accepted: 0 to {len(self.data) - 1}")


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    below: str | Path | None = None,
    data: FederatedData | None = None,
    model: nn.Module | None = None,
    progress: Callable[[RoundEnd], None] | None = None,
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
) -> Result:
    """Run an experiment; with `out`, leave a run folder there, with `below`, in a new folder inside that one.

    `data` and `model` take the place of the experiment's data set, partition and model. Everything is checked
    before the folder is made and training starts; the user's model itself is never changed. `sinks` are told of every
    round, and so is the function `progress`. `stop`, one for each run, may ask for an end before time, which is a
    `StoppedError`; `resume` goes on from there.
    """
    if out is not None:
        check_free(Path(out))
    elif below is not None:
        check_space(Path(below), 0)

    def folder(simulation: Simulation, why: Mapping[str, Any]) -> RunFolder | None:
        places = (None if place is None else Path(place) for place in (out, below))
        earlier.inherit(simulation, learnt)
        return folders.create(simulation, why, *places)

    told = checked(sinks, progress)
    prepared = prepare(experiment, data, model)
    learnt = earlier.remembered(prepared[0], Layout.of(prepared[2]))
    return _execute(prepared, folder, told, stop or Stop())


def resume(
    path: str | Path,
    *,
    data: FederatedData | None = None,
    model: nn.Module | None = None,
    progress: Callable[[RoundEnd], None] | None = None,
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> Result:
    """Go on with a run that was stopped or killed, from its last checkpoint, or anew if it had none yet.

    The result is that of a run which was never stopped, bit for bit. What was handed over in Python, `data` and
    `model`, has to be handed over again. `tell` is told what a user should know.
    """
    path = Path(path)
    check_resumable(path)

    def folder(simulation: Simulation, why: Mapping[str, Any]) -> RunFolder:
        return folders.reopen(simulation, why, path, tell)

    told = checked(sinks, progress)
    return _execute(prepare(Experiment.load(path / EXPERIMENT), data, model), folder, told, stop or Stop())


def _execute(
    prepared: tuple[Experiment, FederatedData, nn.Module],
    open_folder: Callable[[Simulation, Mapping[str, Any]], RunFolder | None],
    given: Sequence[Sink],
    stop: Stop,
) -> Result:
    """A run that was prepared; the folder is opened when nothing else can be wrong any more."""
    experiment, data, module = prepared
    client_rule, _ = experiment.algorithm.rules()
    flat = FlatModel(module)
    workshop = Workshop(
        copy.deepcopy(module),
        data,
        client_rule,
        experiment.local,
        experiment.seed,
        Chain(experiment.wire),
        experiment.objective,
    )
    with ExitStack() as open_:
        open_.enter_context(threads(experiment.threads))
        choice = choose(experiment, workshop, flat)
        experiment = experiment.replace(executor=choice.settings)
        executor = workshop.executor(choice.settings)
        open_.callback(executor.close)
        simulation = Simulation(experiment, data, flat, executor)
        folder = open_folder(simulation, reasons(choice))
        recorder, history = None, list[Evaluation]()
        if folder is not None:
            open_.enter_context(folder)
            recorder, history = Recorder(simulation, folder, stop), folder.history()
        sinks = open_.enter_context(Sinks(recorder, given))
        where = folder.path if folder else None
        sinks.begin(Start(experiment, where, simulation.round - 1, tuple(history)))
        history += drive(simulation, sinks, recorder, stop)
        summary = summarise(simulation, history, folder.beginning if folder else reasons(choice))
        outputs = simulation.outputs()
        if outputs is not None and data.classes <= MOST_CLASSES:
            summary["by_class"] = simulation.by_class(outputs)
        flat.load(*simulation.evaluated)
        if folder is not None:  # before anything else can go wrong
            save(folder, simulation, module)
            if stop.asked and tests_clients(simulation):
                raise StoppedError(f"stopped after the last round, before clients are tested; {folder.advice}")
        tuned = score_clients(simulation, workshop, choice, summary, folder, outputs)
        sinks.finish(summary)
        simulation.release()  # what is kept of the run needs no workers
    return Result(experiment, summary, history, flat.release(), data, where, simulation, tuned)
