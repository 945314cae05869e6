"""Clients' own models: saved, tested and fine-tuned when the rounds are over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
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
from fedkeel.runner.run import Run
from fedkeel.runner.scores import Model, client_scores, column, columns, finetuned, spread
from fedkeel.runner.steps import announce
from fedkeel.wire.transform import Chain

MOST_CLASSES = 100
"""Of which the summary tells metrics one by one."""


def save(folder: RunFolder, run: Run, module: nn.Module) -> None:
    """The global model; where there is none, the global header and the models of all clients that took part."""
    if run.standing().global_model:
        folder.save("model", module.state_dict())
        best = best_model(run, module)
        if best is not None:
            folder.save("best_model", best.state_dict())
        return
    head = run.layout.head_names
    folder.save("header", {name: tensor for name, tensor in module.state_dict().items() if name in head})
    own = {client: own_model(run, module, client).state_dict() for client in run.took_part}
    folder.save("client_models", {f"{client}/{name}": t for client, each in own.items() for name, t in each.items()})


def best_model(run: Run, module: nn.Module) -> nn.Module | None:
    """The global model of the best evaluation, as a copy of `module` with its weights, if there is one."""
    best = run.tuning.best
    if best is None or "w" not in best:
        return None
    flat = FlatModel(copy.deepcopy(module))
    flat.load(best["w"], best["buffers"])
    return flat.release()


def global_model(run: Run, module: nn.Module) -> nn.Module:
    """The model that is tested, as a copy of `module` with its weights, in eval mode."""
    flat = FlatModel(copy.deepcopy(module))
    flat.load(*run.evaluated)
    return flat.release().eval()


def own_model(run: Run, module: nn.Module, client: int) -> nn.Module:
    """A client's own model, as a copy of `module` with its weights."""
    flat = FlatModel(copy.deepcopy(module))
    flat.load(*run.own(client))
    return flat.release()


def tests_clients(run: Run) -> bool:
    """Whether models are tested client by client at the end."""
    experiment = run.experiment
    asked = experiment.evaluate_clients or experiment.finetune_epochs > 0 or run.clients_have_tests
    return asked or not run.standing().global_model


Finetuning = Callable[[], tuple[NDArray[np.float64], list[int]]]
"""Fine-tunes all clients: (the first metric of each after that, who diverged)."""


def score_clients(
    run: Run, summary: dict[str, Any], folder: RunFolder | None, finetune: Finetuning | None = None
) -> NDArray[np.float64] | None:
    """The final model class by class, and client by client where clients have test rows or it was asked for.

    Puts metrics of classes and spreads over clients into the summary, writes a row per client, and returns the first
    metric after fine-tuning. What is estimated from a common test set is called that.
    """
    task = run.task
    outputs = run.outputs()
    if outputs is not None and run.data.classes <= MOST_CLASSES:
        summary["by_class"] = run.by_class(outputs)
    if not tests_clients(run):
        return None
    announce("testing the clients one by one")
    first, suffix = task.names[0], "" if run.clients_have_tests else "_estimated"
    found = columns(run.client_scores(outputs), task)
    for name, values in found.items():
        summary[f"client_{name}{suffix}"] = spread(values, task.better(name))
    undefined = {name: int(np.isnan(values).sum()) for name, values in found.items() if np.isnan(values).any()}
    summary["clients_without"] = undefined or None
    if finetune is not None:
        found["finetuned"], lost = finetune()
        tuned = None if lost else spread(found["finetuned"], task.better(first))
        summary[f"client_{first}_finetuned{suffix}"] = tuned
        summary["finetuning_diverged"] = lost
    if folder is not None:
        folder.add_client_metrics(found, run.client_rows(), run.data.client_names, estimated=bool(suffix))
    return found.get("finetuned")


def finetuning(run: Run, workshop: Workshop, choice: Choice) -> Finetuning | None:
    """Of the clients' own models at the end, where the experiment asks for that."""
    return partial(_finetuned, run, workshop, choice) if run.experiment.finetune_epochs else None


def _finetuned(run: Run, workshop: Workshop, choice: Choice) -> tuple[NDArray[np.float64], list[int]]:
    """(The first metric of the clients' own models after some more epochs, on their own test rows; who diverged)."""
    experiment, clients, epochs = run.experiment, range(len(run.data)), run.experiment.finetune_epochs
    local = experiment.local.model_copy(update={"epochs": epochs, "steps": None})
    rule = FineTuning(part=experiment.finetune.part)
    executor = replace(workshop, rule=rule, local=local, wire=Chain()).executor(choice.settings)
    last = experiment.local.rate(max(1, run.round - 1), experiment.rounds)
    rate = experiment.finetune.lr or last
    w, _ = run.evaluated
    lr = torch.full((epochs,), rate, dtype=w.dtype, device=w.device)
    models = [(client, run.own(client)) for client in clients]
    lost: list[int] = []

    def tuned() -> Iterator[Model | None]:
        after = finetuned(models, executor, run.data, experiment.rounds + 1, lr)
        for client, model in zip(clients, after, strict=True):
            lost.extend([client] if model is None else [])
            yield model

    try:
        scores = client_scores(clients, tuned(), executor.evaluate, run.data, experiment.seed)
    finally:
        executor.close()
    return column(scores), lost
