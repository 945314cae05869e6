"""What is made of a run when its rounds are over: the model, the clients' own models, the summary."""

from __future__ import annotations

import copy
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedkeel.local.build import Workshop
from fedkeel.local.executors.choose import Choice
from fedkeel.methods.finetune import FineTuning
from fedkeel.params import FlatModel
from fedkeel.record.folder import RunFolder
from fedkeel.runner.scores import Model, accuracies, client_scores, finetuned, spread
from fedkeel.runner.simulation import Simulation
from fedkeel.server.progress import Evaluation


def save(folder: RunFolder, simulation: Simulation, module: nn.Module) -> None:
    """The global model; where there is none, the global header and the models of all clients that took part."""
    if simulation.core.model.client_rule.global_model:
        folder.save("model", module.state_dict())
        return
    folder.save(
        "header", {n: t for n, t in module.state_dict().items() if n in simulation.core.model.layout.head_names}
    )
    own = {client: own_model(simulation, module, client).state_dict() for client in simulation.took_part}
    folder.save("client_models", {f"{client}/{name}": t for client, each in own.items() for name, t in each.items()})


def own_model(simulation: Simulation, module: nn.Module, client: int) -> nn.Module:
    """A client's own model, as a copy of `module` with its weights."""
    flat = FlatModel(copy.deepcopy(module))
    flat.load(*simulation.own(client))
    return flat.release()


def tests_clients(simulation: Simulation) -> bool:
    """Whether clients' own models are tested at the end."""
    experiment = simulation.experiment
    asked = experiment.evaluate_clients or experiment.finetune_epochs > 0
    return asked or not simulation.core.model.client_rule.global_model


def score_clients(
    simulation: Simulation, workshop: Workshop, choice: Choice, summary: dict[str, Any], folder: RunFolder | None
) -> NDArray[np.float64] | None:
    """Clients' own models on their own test shares, where that was asked for or the method is about them.

    Puts the spreads into the summary, writes a row a client, and returns the accuracies after fine-tuning.
    """
    epochs = simulation.experiment.finetune_epochs
    if not tests_clients(simulation):
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
    lr = torch.full(
        (epochs,), rate, dtype=simulation.core.model.state.w.dtype, device=simulation.core.model.state.w.device
    )
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


def summarise(simulation: Simulation, history: Sequence[Evaluation], choice: Choice) -> dict[str, Any]:
    """What `summary.json` holds."""
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
        "tested": "global model" if simulation.core.model.client_rule.global_model else "clients' own models",
        "final_accuracy": last.accuracy,
        "best_accuracy": max(e.accuracy for e in history),
        "final_loss": last.loss,
        "target_accuracy": target,
        "rounds_to_target": reached.round if reached else None,
        "virtual_seconds": simulation.world.now,
        "virtual_seconds_to_target": reached.virtual_seconds if reached else None,
        "updates_to_target": reached.updates if reached else None,
        "bytes_to_target": reached.bytes_up + reached.bytes_down if reached else None,
        "bytes_up": simulation.core.ledger.bytes_up,
        "bytes_down": simulation.core.ledger.bytes_down,
        "updates": simulation.core.ledger.updates,
        "updates_refused": simulation.core.ledger.refused,
        "uploads_turned_away": simulation.core.ledger.turned_away,
        "jobs_lost": simulation.core.ledger.lost,
        "jobs_in_flight": simulation.core.ledger.left,
        "wall_seconds": simulation.wall_seconds,
        "seconds_per_round_median": float(np.median(simulation.round_seconds)),
        "samples_per_second": simulation.core.ledger.samples / simulation.seconds,
        "parameters": simulation.core.model.layout.size,
        "executor": choice.settings.model_dump(),
        "probe": {"seconds_per_round": choice.seconds, "refused": choice.refused},
        "why_not_stacked": choice.why_not_stacked,
        "device": experiment.device,
        "threads": experiment.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
