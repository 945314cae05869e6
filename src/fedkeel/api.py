"""`run` and `resume`: from a description, and possibly the user's own data and model, to a result."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError, shown
from fedkeel.local.build import Workshop
from fedkeel.local.evaluation import Evaluator
from fedkeel.params import FlatModel, Layout
from fedkeel.record.folder import RunFolder, check_free, check_resumable, check_space
from fedkeel.record.rows import Evaluation
from fedkeel.record.schema import EXPERIMENT
from fedkeel.runner import earlier, extend, folders, initial
from fedkeel.runner.choice import choose, reasons, with_workers
from fedkeel.runner.clients import best_model, finetuning, global_model, own_model, save, score_clients, tests_clients
from fedkeel.runner.drive import drive
from fedkeel.runner.export import export
from fedkeel.runner.prepare import check_kinds, prepare
from fedkeel.runner.recorder import Recorder
from fedkeel.runner.scores import client_scores, column
from fedkeel.runner.simulation import Simulation
from fedkeel.runner.sinks import Progress, Sink, Sinks, Start, checked
from fedkeel.runner.stopping import Stop
from fedkeel.runner.summary import summarise
from fedkeel.runner.threads import threads
from fedkeel.runner.watch import GivenUpError, Watch
from fedkeel.wire.transform import Chain


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {'undefined' if v is None else f'{v:.4g}'}" for name, v in self.metrics.items())
        return f"<Result of {self.experiment.algorithm.label}: {told} after {self.history[-1].round} rounds>"

    @property
    def finetuned(self) -> NDArray[np.float64] | None:
        """The first metric of each client's own model after fine-tuning, on its own test rows, where that was done."""
        return self.finetuned_accuracy

    @property
    def accuracy(self) -> float:
        """Of the final model on the test set; without a global model, the mean over the clients' own."""
        return float("nan") if (value := self.history[-1].accuracy) is None else value

    @property
    def metrics(self) -> dict[str, float | None]:
        """Of the final model on the test set, by name; the first is the one by which models are compared."""
        return dict(self.history[-1].metrics)

    def evaluate_clients(
        self, clients: Sequence[int] | None = None, *, metric: str | None = None, model: nn.Module | None = None
    ) -> NDArray[np.float64]:
        """A metric on each client's own test rows, by default the task's first; NaN for a client without such rows.

        Of the final model, or where the method gives clients their own (FedGH), of these; or of another `model` of the
        same layers, such as `best_model`. Where the test set is a common one that belongs to no client
        (`data.clients_have_tests` is False), each client's result is estimated: on test samples drawn in the
        proportions of its training labels.
        """
        if isinstance(clients, str):
            raise InputError(
                f"clients must be a list of numbers; got {shown(clients)}; to choose a metric, say metric="
            )
        chosen = range(len(self.data)) if clients is None else clients
        for client in chosen:
            self._check(client)
        test = Evaluator(self.model, self.data, self.simulation.task).score
        models = map(self.simulation.own, chosen) if model is None else repeat(self._weights(model), len(chosen))
        return column(client_scores(chosen, models, test, self.data, self.experiment.seed), metric)

    @property
    def best_model(self) -> nn.Module | None:
        """The global model of the best evaluation: on the validation set where there is one, else on the test set."""
        return best_model(self.simulation, self.model)

    def client_model(self, client: int) -> nn.Module:
        """A client's own model, not fine-tuned: a copy of the global one, unless the method has others (FedGH)."""
        self._check(client)
        return own_model(self.simulation, self.model, client)

    def export(self, path: str | Path, to: str | None = None) -> Path:
        """Write the model to a file for serving: `to` is torchscript, onnx or safetensors, or as the path ends.

        TorchScript and ONNX files are tried: they compute what the model computes, for any number of samples.
        """
        return export(self.model, self.data, self.experiment, path, to)

    def _weights(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Of a model that has the layers of the one that was trained."""
        flat = FlatModel(copy.deepcopy(model))
        own = Layout.of(self.model)
        if (flat.layout.parameters, flat.layout.buffers) != (own.parameters, own.buffers):
            raise InputError("model must have the same layers as the model that was trained; got another one")
        return flat.w, flat.buffers

    def _check(self, client: int) -> None:
        if not 0 <= client < len(self.data):
            raise InputError(f"clients must be from 0 to {len(self.data) - 1}; got {client}")


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    below: str | Path | None = None,
    data: FederatedData | None = None,
    model: nn.Module | None = None,
    progress: Progress | None = None,
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
) -> Result:
    """Run an experiment; with `out`, leave a run folder there, with `below`, in a new folder inside that one.

    `data` and `model` take the place of the experiment's data set, partition and model. Everything is checked
    before the folder is made and training starts; the user's model itself is never changed. `sinks` are told of every
    round, and so is the function `progress`: it is called with a `RoundEnd`, and with a copy of the global model if it
    takes two arguments. `stop`, one for each run, may ask for an end before time, which is a `StoppedError`; `resume`
    goes on from there.
    """
    check_kinds(experiment, data, model)
    if out is not None:
        check_free(Path(out))
    elif below is not None:
        check_space(Path(below), 0)

    def folder(simulation: Simulation, why: Mapping[str, Any]) -> RunFolder | None:
        where, parent = (None if place is None else Path(place) for place in (out, below))
        earlier.inherit(simulation, learnt)
        return folders.create(simulation, why, where, parent, start if experiment.init is not None else None)

    told = checked(sinks, progress)
    watch = Watch(stop, getattr(experiment, "limit_wall_seconds", None))
    prepared = prepare(experiment, data, model)
    learnt, start = earlier.remembered(prepared[0], Layout.of(prepared[2])), prepared[2]
    return _execute(prepared, folder, told, watch)


def resume(
    path: str | Path,
    *,
    data: FederatedData | None = None,
    model: nn.Module | None = None,
    progress: Progress | None = None,
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
    tell: Callable[[str], None] = warnings.warn,
    **changes: Any,
) -> Result:
    """Continue a run that was stopped or killed from its last checkpoint, or from the start if it had none yet.

    The result is that of a run which was never stopped, bit for bit. What was handed over in Python, `data` and
    `model`, has to be handed over again. `tell` is called with each sentence that a user should know.

    `changes` are settings with new values, such as `rounds=300`: a run that is complete is extended by them, and the
    result is that of a run which had them from the start. Only what decides when a run ends can change, what is done
    after its last round, and who does the work: `rounds`, `limit_seconds`, `limit_wall_seconds`, `target`,
    `target_accuracy`, `stop_at_target`, `finetune`, `checkpoint` and `executor`, the latter without `stack`, `native`
    and `channels_last`.
    """
    path = Path(path)
    check_resumable(path, changed=bool(changes))
    stored = Experiment.load(path / EXPERIMENT)
    other = extend.changed(path, stored, changes)
    check_resumable(path, changed=other is not None)
    experiment = other or stored

    def folder(simulation: Simulation, why: Mapping[str, Any]) -> RunFolder:
        opened = folders.reopen(simulation, why, path, tell, changed=other is not None)
        for sentence in extend.words(stored, experiment):
            tell(sentence)
        return opened

    told = checked(sinks, progress)
    watch = Watch(stop, experiment.limit_wall_seconds)
    return _execute(prepare(experiment, data, model, path / initial.COPY), folder, told, watch)


def _execute(
    prepared: tuple[Experiment, FederatedData, nn.Module],
    open_folder: Callable[[Simulation, Mapping[str, Any]], RunFolder | None],
    given: Sequence[Sink],
    watch: Watch,
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
        open_.enter_context(watch)
        open_.enter_context(threads(experiment.threads))
        open_.enter_context(with_workers(experiment.executor))
        choice = choose(experiment, workshop, flat)
        experiment = experiment.replace(executor=choice.settings)
        executor = workshop.executor(choice.settings)
        open_.callback(executor.close)
        simulation = Simulation(experiment, data, flat, executor)
        folder = open_folder(simulation, reasons(choice))
        recorder, history = None, list[Evaluation]()
        if folder is not None:
            open_.enter_context(folder)
            recorder, history = Recorder(simulation, folder, watch), folder.history()
        sinks = open_.enter_context(Sinks(recorder, given, partial(global_model, simulation, module)))
        where = folder.path if folder else None
        sinks.begin(Start(experiment, where, simulation.round - 1, tuple(history)))
        history += drive(simulation, sinks, recorder, watch)
        summary = summarise(simulation, history, folder.beginning if folder else reasons(choice))
        flat.load(*simulation.evaluated)
        if folder is not None:  # before anything else can go wrong
            save(folder, simulation, module)
            if watch.due and tests_clients(simulation):
                raise watch.stopped("after the last round, before clients are tested", folder.advice)
        summary |= executor.report()
        try:
            with watch.impatiently():
                tuned = score_clients(simulation, summary, folder, finetuning(simulation, workshop, choice))
        except GivenUpError:
            watch.close()
            when = "after the last round, while clients were tested"
            raise (watch.stopped(when, folder.advice) if folder else watch.stopped(when)) from None
        sinks.finish(summary)
        simulation.release()  # what is kept of the run needs no workers
    return Result(experiment, summary, history, flat.release(), data, where, simulation, tuned)
