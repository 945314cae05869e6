"""`run`: from a description, and possibly the user's own data and model, to a result."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedkeel.algorithms.finetune import FineTuning
from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError
from fedkeel.experiment import ExecutorSettings, Experiment
from fedkeel.local.build import Workshop
from fedkeel.local.choose import Choice, settle
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.gate import objection
from fedkeel.local.processes import unavailable
from fedkeel.local.remember import place, recall, remember
from fedkeel.params import FlatModel
from fedkeel.prepare import prepare
from fedkeel.record.folder import RunFolder, check_free
from fedkeel.runtime import Evaluation, RoundEnd, Simulation
from fedkeel.runtime.clients import Model, accuracies, client_scores, finetuned, spread


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
        return _own_model(self.simulation, self.model, client)

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
) -> Result:
    """Run an experiment; with `out`, leave a run folder there, with `below`, in a new folder inside that one.

    `data` and `model` take the place of the experiment's data set, partition and model. Everything is checked
    before the folder is made and training starts; the user's model itself is never changed.
    """
    if out is not None:
        check_free(Path(out))
    experiment, data, module = prepare(experiment, data, model)
    client_rule, _ = experiment.algorithm.rules()
    flat = FlatModel(module)
    workshop = Workshop(copy.deepcopy(module), data, client_rule, experiment.local, experiment.seed)
    with ExitStack() as open_:
        open_.enter_context(_threads(experiment.threads))
        choice = _choose(experiment, workshop, flat)
        experiment = experiment.replace(executor=choice.settings)
        executor = workshop.executor(choice.settings)
        open_.callback(executor.close)
        simulation = Simulation(experiment, data, flat, executor)
        folder = None
        if out is not None:
            folder = open_.enter_context(RunFolder(out, experiment))
        elif below is not None:
            folder = open_.enter_context(RunFolder.below(Path(below), _folder_name(experiment), experiment))
        started = perf_counter()
        history = _follow(simulation, [folder.add if folder else None, progress])
        in_flight = simulation.flights.close()
        if folder is not None:
            folder.add_unfinished(in_flight)
        summary = _summary(simulation, history, perf_counter() - started, choice)
        flat.load(simulation.server.evaluated, simulation.server.buffers)
        if folder is not None:  # before anything else can go wrong
            _save(folder, simulation, module)
        tuned = _test_clients(simulation, workshop, choice, summary, folder)
        if folder is not None:
            folder.finish(summary)
        simulation.executor = None  # what is kept of the run needs no workers
    where = folder.path if folder else None
    return Result(experiment, summary, history, flat.release(), data, where, simulation, tuned)


def _save(folder: RunFolder, simulation: Simulation, module: nn.Module) -> None:
    """The global model; where there is none, the global header and the models of all clients that took part."""
    if simulation.server.client_rule.global_model:
        folder.save("model", module.state_dict())
        return
    folder.save("header", {n: t for n, t in module.state_dict().items() if n in simulation.server.layout.head_names})
    own = {client: _own_model(simulation, module, client).state_dict() for client in simulation.took_part}
    folder.save("client_models", {f"{client}/{name}": t for client, each in own.items() for name, t in each.items()})


def _own_model(simulation: Simulation, module: nn.Module, client: int) -> nn.Module:
    flat = FlatModel(copy.deepcopy(module))
    flat.load(*simulation.own(client))
    return flat.release()


def _test_clients(
    simulation: Simulation, workshop: Workshop, choice: Choice, summary: dict[str, Any], folder: RunFolder | None
) -> NDArray[np.float64] | None:
    """Clients' own models on their own test shares, where that was asked for or the method is about them.

    Puts the spreads into the summary, writes a row a client, and returns the accuracies after fine-tuning.
    """
    experiment, rule = simulation.experiment, simulation.server.client_rule
    epochs = experiment.finetune_epochs
    if not (experiment.evaluate_clients or epochs or not rule.global_model):
        return None
    found = {"accuracy": accuracies(simulation.client_scores())}
    summary["client_accuracy"] = spread(found["accuracy"])
    if epochs:
        found["finetuned"], lost = _finetuned(simulation, workshop, choice, epochs)
        summary["client_accuracy_finetuned"] = None if lost else spread(found["finetuned"])
        summary["finetuning_diverged"] = lost
    if folder is not None:
        folder.add_client_accuracies(found)
    return found.get("finetuned")


def _finetuned(
    simulation: Simulation, workshop: Workshop, choice: Choice, epochs: int
) -> tuple[NDArray[np.float64], list[int]]:
    """(Accuracies of the clients' own models after so many more epochs, on their own test shares; who diverged)."""
    experiment, clients = simulation.experiment, range(len(simulation.data))
    local = experiment.local.model_copy(update={"epochs": epochs})
    rule = FineTuning(part=experiment.finetune.part)
    executor = replace(workshop, rule=rule, local=local).executor(choice.settings)
    last = experiment.local.lr * experiment.local.lr_decay ** max(0, simulation.round - 2)
    rate = experiment.finetune.lr or last
    lr = torch.full((epochs,), rate, dtype=simulation.server.state.w.dtype, device=simulation.server.state.w.device)
    models = [(client, simulation.own(client)) for client in clients]
    lost: list[int] = []

    def tuned() -> Iterator[Model | None]:
        after = finetuned(models, executor, simulation.data, experiment.rounds + 1, lr)
        for client, model in zip(clients, after, strict=True):
            lost.extend([client] if model is None else [])
            yield model

    try:
        scores = client_scores(clients, tuned(), executor.evaluate, simulation.data, experiment.seed)
    finally:
        executor.close()
    return accuracies(scores), lost


def _choose(experiment: Experiment, workshop: Workshop, flat: FlatModel) -> Choice:
    """The executor that was asked for; what is left open as it was last time, or else as measured now."""
    asked = experiment.executor
    no_workers = unavailable() if experiment.device == "cpu" else "workers are for device cpu"
    if asked.kind == "processes" and no_workers:
        raise InputError(f"executor.kind: processes is not accepted here: {no_workers}; accepted: serial or vectorised")
    alone = ExecutorSettings(kind="serial", stack=0, channels_last=False)
    asks = workshop.executor(alone) if workshop.rule.survey else None
    orders = Simulation(experiment, workshop.data, flat, asks).first_orders()
    if asks is not None:
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


def _follow(simulation: Simulation, observers: Sequence[Callable[[RoundEnd], None] | None]) -> list[Evaluation]:
    history = []
    for end in simulation.rounds():
        for observe in filter(None, observers):
            observe(end)
        if end.evaluation is not None:
            history.append(end.evaluation)
    return history


def _summary(
    simulation: Simulation, history: Sequence[Evaluation], wall_seconds: float, choice: Choice
) -> dict[str, Any]:
    experiment = simulation.experiment
    last = history[-1]
    target = experiment.target_accuracy
    reached = next((e for e in history if target is not None and e.accuracy >= target), None)
    return {
        "algorithm": experiment.algorithm.label,
        "dataset": experiment.dataset.name,
        "model": experiment.model.name,
        "partition": experiment.partition.kind,
        "clients": experiment.clients,
        "per_round": experiment.participants,
        "seed": experiment.seed,
        "rounds": last.round,
        "tested": "global model" if simulation.server.client_rule.global_model else "clients' own models",
        "final_accuracy": last.accuracy,
        "best_accuracy": max(e.accuracy for e in history),
        "final_loss": last.loss,
        "target_accuracy": target,
        "rounds_to_target": reached.round if reached else None,
        "virtual_seconds": last.virtual_seconds,
        "virtual_seconds_to_target": reached.virtual_seconds if reached else None,
        "updates_to_target": reached.updates if reached else None,
        "bytes_to_target": reached.bytes_up + reached.bytes_down if reached else None,
        "bytes_up": last.bytes_up,
        "bytes_down": last.bytes_down,
        "updates": last.updates,
        "updates_refused": simulation.refused,
        "jobs_lost": simulation.flights.lost,
        "jobs_in_flight": simulation.flights.left,
        "wall_seconds": wall_seconds,
        "seconds_per_round_median": float(np.median(simulation.round_seconds)),
        "samples_per_second": simulation.samples_trained / sum(simulation.round_seconds),
        "parameters": simulation.server.layout.size,
        "executor": choice.settings.model_dump(),
        "probe": {"seconds_per_round": choice.seconds, "refused": choice.refused},
        "device": experiment.device,
        "threads": experiment.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
