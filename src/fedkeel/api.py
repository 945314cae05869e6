"""`run` and `resume`: from a description, and possibly the user's own data and model, to a result."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError, InputError, StoppedError
from fedkeel.local.build import Workshop
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.executors.agreement import objection
from fedkeel.local.executors.choose import Choice, settle
from fedkeel.local.executors.processes import unavailable
from fedkeel.local.executors.remember import place, recall, remember
from fedkeel.local.settings import ExecutorSettings
from fedkeel.params import FlatModel
from fedkeel.record.folder import EXPERIMENT, RunFolder, begun, check_free, check_room, complete
from fedkeel.record.identity import identity
from fedkeel.runner.prepare import prepare
from fedkeel.runner.recorder import Keeper
from fedkeel.runner.result import own_model, save, score_clients, summarise, tests_clients
from fedkeel.runner.scores import accuracies, client_scores
from fedkeel.runner.simulation import Simulation, first_orders
from fedkeel.runner.stopping import Stop
from fedkeel.server.progress import Evaluation, RoundEnd
from fedkeel.wire.transform import Chain


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
    """Of each client's own model after fine-tuning, on its own share of the test set, where that was done."""

    @property
    def accuracy(self) -> float:
        """Of the final model on the test set; without a global model, the mean over the clients' own."""
        return self.history[-1].accuracy

    def evaluate_clients(self, clients: Sequence[int] | None = None) -> NDArray[np.float64]:
        """Accuracy on each client's own share of the test set (NaN for a client without one).

        Of the final model, or where the method gives clients their own (FedGH), of these.
        """
        chosen = range(len(self.data)) if clients is None else clients
        for client in chosen:
            self._check(client)
        models, test = map(self.simulation.own, chosen), Evaluator(self.model, self.data).score
        return accuracies(client_scores(chosen, models, test, self.data, self.experiment.seed))

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
    stop: Stop | None = None,
) -> Result:
    """Run an experiment; with `out`, leave a run folder there, with `below`, in a new folder inside that one.

    `data` and `model` take the place of the experiment's data set, partition and model. Everything is checked
    before the folder is made and training starts; the user's model itself is never changed. `stop`, one for each run,
    may ask for an end before time, which is a `StoppedError`; `resume` goes on from there.
    """
    if out is not None:
        check_free(Path(out))
    elif below is not None:
        check_room(Path(below), 0)

    def begin(simulation: Simulation) -> RunFolder | None:
        experiment = simulation.experiment
        if out is not None:
            check_room(Path(out), _room(simulation))
            return RunFolder.create(out, experiment, _identity(simulation))
        if below is not None:
            check_room(Path(below), _room(simulation))
            return RunFolder.below(Path(below), _folder_name(experiment), experiment, _identity(simulation))
        return None

    return _execute(prepare(experiment, data, model), begin, progress, stop)


def resume(
    path: str | Path,
    *,
    data: FederatedData | None = None,
    model: nn.Module | None = None,
    progress: Callable[[RoundEnd], None] | None = None,
    stop: Stop | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> Result:
    """Go on with a run that was stopped or killed, from its last checkpoint, or anew if it had none yet.

    The result is that of a run which was never stopped, bit for bit. What was handed over in Python, `data` and
    `model`, has to be handed over again. `tell` is told what a user should know.
    """
    path = Path(path)
    if not begun(path):
        raise InputError(f"resume: {path} holds no run that was begun; accepted: a folder made by fedkeel run")
    if complete(path):
        raise InputError(f"resume: the run in {path} is complete; accepted: one that was stopped or killed")

    def reopen(simulation: Simulation) -> RunFolder:
        check_room(path, _room(simulation))
        folder, found = RunFolder.reopen(path, simulation.experiment, _identity(simulation))
        try:
            if found is None:
                tell(f"{path} has no checkpoint yet: the run starts anew")
            else:
                for sentence in (*found.passed_over, *found.notes, f"{path} goes on after round {found.number}"):
                    tell(sentence)
                simulation.restore(found.state)
        except BaseException as error:
            folder.close()
            if isinstance(error, KeyError):
                raise FedkeelError(
                    f"checkpoint {found and found.path} lacks {error}: another version wrote it"
                ) from error
            raise
        return folder

    return _execute(prepare(Experiment.load(path / EXPERIMENT), data, model), reopen, progress, stop)


def _execute(
    prepared: tuple[Experiment, FederatedData, nn.Module],
    open_folder: Callable[[Simulation], RunFolder | None],
    progress: Callable[[RoundEnd], None] | None,
    stop: Stop | None,
) -> Result:
    """A run that was prepared; the folder is opened when nothing else can be wrong any more."""
    experiment, data, module = prepared
    client_rule, _ = experiment.algorithm.rules()
    flat = FlatModel(module)
    workshop = Workshop(
        copy.deepcopy(module), data, client_rule, experiment.local, experiment.seed, Chain(experiment.wire)
    )
    with ExitStack() as open_:
        open_.enter_context(_threads(experiment.threads))
        choice = _choose(experiment, workshop, flat)
        experiment = experiment.replace(executor=choice.settings)
        executor = workshop.executor(choice.settings)
        open_.callback(executor.close)
        simulation = Simulation(experiment, data, flat, executor)
        folder = open_folder(simulation)
        history = []
        if folder is not None:
            open_.enter_context(folder)
            history = folder.history()
        stop = stop or Stop()
        history += _follow(simulation, folder, progress, stop)
        rest = simulation.rest()
        if folder is not None:
            folder.add_rest(simulation.round, *rest)
        summary = summarise(simulation, history, choice)
        flat.load(simulation.core.model.evaluated, simulation.core.model.buffers)
        if folder is not None:  # before anything else can go wrong
            save(folder, simulation, module)
            if stop.asked and tests_clients(simulation):
                raise StoppedError(f"stopped after the last round, before clients are tested; {folder.standing}")
        tuned = score_clients(simulation, workshop, choice, summary, folder)
        if folder is not None:
            folder.finish(summary)
        simulation.release()  # what is kept of the run needs no workers
    where = folder.path if folder else None
    return Result(experiment, summary, history, flat.release(), data, where, simulation, tuned)


def _follow(
    simulation: Simulation, folder: RunFolder | None, progress: Callable[[RoundEnd], None] | None, stop: Stop
) -> list[Evaluation]:
    """Go through the rounds: write each down, and the state where that is due; returns the evaluations."""
    history = []
    keeper = Keeper(simulation, folder, stop) if folder is not None else None
    with keeper or nullcontext():
        for end in simulation.rounds():
            if end.evaluation is not None:
                history.append(end.evaluation)
            if keeper is not None:
                keeper.add(end)
            if progress is not None:
                progress(end)
            if keeper is not None:
                keeper.save_if_due(end.round)
            elif stop.asked and not simulation.over:
                raise StoppedError(f"stopped after round {end.round}; nothing was recorded")
    if keeper is not None:
        keeper.save(simulation.round - 1)
    return history


def _identity(simulation: Simulation) -> str:
    return identity(simulation.data, simulation.core.model.layout, simulation.world.flights.fleet)


def _room(simulation: Simulation) -> int:
    """Bytes that a run needs for sure: the model, two checkpoints, and a third while it is written."""
    server = simulation.core.model
    state = [server.state.w, server.buffers, *server.state.memory.values()]
    return 4 * sum(tensor.nbytes for tensor in state)


def _choose(experiment: Experiment, workshop: Workshop, flat: FlatModel) -> Choice:
    """The executor that was asked for; what is left open as it was last time, or else as measured now."""
    asked = experiment.executor
    no_workers = unavailable() if experiment.device == "cpu" else "workers are for device cpu"
    if asked.kind == "processes" and no_workers:
        raise InputError(f"executor.kind: processes is not accepted here: {no_workers}; accepted: serial or vectorised")
    alone = ExecutorSettings(kind="serial", stack=0, channels_last=False)
    asks = workshop.executor(alone)
    orders = first_orders(experiment, workshop.data, flat, asks)
    asks.close()
    if asked.settled:
        return settle(workshop, asked, orders, experiment.rounds, fork=False)
    kept = place(experiment, workshop.data, workshop.module)
    choice = recall(kept)
    possible = choice is not None and not (choice.settings.kind == "processes" and no_workers)
    if choice is None or not possible or objection(workshop, choice.settings, orders):
        choice = settle(workshop, asked, orders, experiment.rounds, fork=no_workers is None)
        remember(kept, choice)
    return choice


def _folder_name(experiment: Experiment) -> str:
    parts = (experiment.dataset.name, experiment.model.name, experiment.algorithm.label, f"seed{experiment.seed}")
    return experiment.name or "-".join(parts).replace(":", "_")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
