"""`run`: from a description, and possibly the user's own data and model, to a result."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError
from fedkeel.experiment import Experiment
from fedkeel.local.build import Workshop
from fedkeel.local.choose import Choice, settle
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.gate import objection
from fedkeel.local.orders import Score
from fedkeel.local.processes import unavailable
from fedkeel.local.remember import place, recall, remember
from fedkeel.params import FlatModel
from fedkeel.prepare import prepare
from fedkeel.record.folder import RunFolder, check_free
from fedkeel.runtime import Evaluation, RoundEnd, Simulation


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    experiment: Experiment
    summary: dict[str, Any]
    """What `summary.json` holds."""
    history: list[Evaluation]
    model: nn.Module
    """The trained global model."""
    data: FederatedData
    out: Path | None
    """The run folder, where one was asked for."""

    @property
    def accuracy(self) -> float:
        """Of the final model on the test set."""
        return self.history[-1].accuracy

    def evaluate_clients(self, clients: Sequence[int] | None = None) -> NDArray[np.float64]:
        """The final model's accuracy on each client's own share of the test set (NaN for a client without one)."""
        flat = FlatModel(copy.deepcopy(self.model))
        test = partial(Evaluator(self.model, self.data).score, flat.w, flat.buffers)
        return _client_accuracies(test, self.data, self.experiment.seed, clients)


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
    workshop = Workshop(copy.deepcopy(module), data, client_rule, experiment.local, experiment.seed)
    flat = FlatModel(module)
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
        summary = _summary(simulation, history, perf_counter() - started, choice)
        flat.load(simulation.evaluated, simulation.buffers)
        if experiment.evaluate_clients:
            test = partial(executor.evaluate, flat.w, flat.buffers)
            summary["client_accuracy"] = _spread(_client_accuracies(test, data, experiment.seed))
        if folder is not None:
            folder.finish(summary, module.state_dict())
    return Result(experiment, summary, history, flat.release(), data, folder.path if folder else None)


def _choose(experiment: Experiment, workshop: Workshop, flat: FlatModel) -> Choice:
    """The executor that was asked for; what is left open as it was last time, or else as measured now."""
    asked = experiment.executor
    no_workers = unavailable() if experiment.device == "cpu" else "workers are for device cpu"
    if asked.kind == "processes" and no_workers:
        raise InputError(f"executor.kind: processes is not accepted here: {no_workers}; accepted: serial or vectorised")
    orders = Simulation(experiment, workshop.data, flat).first_orders()
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
    parts = (experiment.dataset.name, experiment.model.name, experiment.algorithm.name, f"seed{experiment.seed}")
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
        "algorithm": experiment.algorithm.name,
        "dataset": experiment.dataset.name,
        "model": experiment.model.name,
        "partition": experiment.partition.kind,
        "clients": experiment.clients,
        "per_round": experiment.participants,
        "seed": experiment.seed,
        "rounds": last.round,
        "final_accuracy": last.accuracy,
        "best_accuracy": max(e.accuracy for e in history),
        "final_loss": last.loss,
        "target_accuracy": target,
        "rounds_to_target": reached.round if reached else None,
        "virtual_seconds": last.virtual_seconds,
        "virtual_seconds_to_target": reached.virtual_seconds if reached else None,
        "bytes_up": last.bytes_up,
        "bytes_down": last.bytes_down,
        "updates": last.updates,
        "wall_seconds": wall_seconds,
        "seconds_per_round_median": float(np.median(simulation.round_seconds)),
        "samples_per_second": simulation.samples_trained / sum(simulation.round_seconds),
        "parameters": simulation.layout.size,
        "executor": choice.settings.model_dump(),
        "probe": {"seconds_per_round": choice.seconds, "refused": choice.refused},
        "device": experiment.device,
        "threads": experiment.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _client_accuracies(
    test: Callable[[Tensor], Score], data: FederatedData, seed: int, clients: Sequence[int] | None = None
) -> NDArray[np.float64]:
    accuracies = []
    for client in range(len(data)) if clients is None else clients:
        if not 0 <= client < len(data):
            raise InputError(f"clients: {client} is not accepted; accepted: 0 to {len(data) - 1}")
        share = data.test_share(client, seed)
        accuracies.append(test(share).accuracy if len(share) else np.nan)
    return np.array(accuracies)


def _spread(accuracies: NDArray[np.float64]) -> dict[str, float] | None:
    """Mean, standard deviation, and the mean of the worst tenth; nothing if no client could be tested."""
    known = np.sort(accuracies[~np.isnan(accuracies)])
    if not len(known):
        return None
    worst = known[: max(1, len(known) // 10)]
    return {"mean": float(known.mean()), "std": float(known.std()), "worst_decile": float(worst.mean())}
