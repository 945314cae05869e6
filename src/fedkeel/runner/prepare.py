"""Everything that is fetched, built and checked before a run starts."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fedkeel import models, streams
from fedkeel.config import usercode
from fedkeel.config.experiment import Experiment
from fedkeel.config.usercode import GIVEN
from fedkeel.data import datasets
from fedkeel.data.datasets import Dataset, Examples
from fedkeel.data.federated import FederatedData, examples
from fedkeel.data.settings import DatasetSettings
from fedkeel.errors import InputError, described, shown
from fedkeel.local import generators
from fedkeel.local.work import batch_sizes
from fedkeel.models.settings import ModelSettings
from fedkeel.params import Layout, head_objection
from fedkeel.runner import files, initial, memory, trial
from fedkeel.runner.steps import announce
from fedkeel.runner.targets import check_numbering, fitted
from fedkeel.runner.threads import threads

LARGE_SAMPLE, LARGE_OPTION = 200_000, 10_000
"""Beyond these, models of the zoo can be too large for a machine."""
_AN: dict[type, str] = {
    Experiment: "an Experiment, such as Experiment(rounds=10)",
    FederatedData: "FederatedData, such as FederatedData.from_clients([(x, y), ...])",
    nn.Module: "a torch.nn.Module, such as nn.Linear(4, 3)",
}
"""What is to be handed over, and how that is made."""
COPIES = 6
"""Of a model that a run needs at least: the server's, a client's, its gradient, its update and what is kept of them."""


def check_kinds(experiment: object, data: object, model: object) -> None:
    """Refuse what is no experiment, data or model."""
    kinds = {"experiment": (experiment, Experiment), "data": (data, FederatedData), "model": (model, nn.Module)}
    for field, (value, kind) in kinds.items():
        if not isinstance(value, kind) and (value is not None or kind is Experiment):
            got = f"the class {value.__name__}" if isinstance(value, type) else described(value)
            raise InputError(f"{field} must be {_AN[kind]}; got {got}")


def prepare(
    experiment: Experiment,
    data: FederatedData | None = None,
    model: nn.Module | None = None,
    init: Path | None = None,
) -> tuple[Experiment, FederatedData, nn.Module]:
    """The experiment as it will run, its data and its freshly initialised model.

    `init` is a run's own copy of the weights that the experiment starts from.
    """
    check_kinds(experiment, data, model)
    if experiment.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device: PyTorch sees no cuda device here; use device=cpu")
    announce("loading the data")
    experiment, data = _data(experiment, data)
    return assemble(experiment, data, model, init)


def assemble(
    experiment: Experiment,
    data: FederatedData,
    model: nn.Module | None = None,
    init: Path | None = None,
    counts: NDArray[np.int64] | None = None,
    users: bool | None = None,
) -> tuple[Experiment, FederatedData, nn.Module]:
    """The same from data that is there: made to fit the task, and the model built and tried on it.

    On a site, `counts` are the labels of all sites, where they are needed. `users` says whether the data is the user's
    own; by default, the name of the data set tells.
    """
    data = fitted(data, experiment.task, experiment.loss.class_weights, counts)
    users = _is_users(experiment.dataset.name) if users is None else users
    if experiment.task == "classification" and users:
        check_numbering(data)
    if experiment.task == "regression" and not users:
        raise InputError(
            f"task=regression needs numbers to predict, but {experiment.dataset.name} has classes; use "
            "task=classification, or data of your own"
        )
    data = data.to(getattr(torch, experiment.dtype), experiment.device)
    announce("building the model")
    experiment, module = _model(experiment, data, model)
    if experiment.init is not None:
        initial.load(module, experiment.init, init)
    with threads(experiment.threads):
        experiment = trial.check(experiment, module, data)
        _check_method(experiment, module, data)
    return experiment, data, module


def _is_users(dataset: str) -> bool:
    """Whether the data is the user's own, rather than one of the data sets that fedkeel knows."""
    return ":" in dataset or bool(files.kind(dataset))


def federate(experiment: Experiment) -> FederatedData:
    """The data set that the experiment names, limited and dealt out as it says."""
    settings = experiment.dataset
    if settings.name.startswith(GIVEN):
        raise InputError(
            f"dataset.name: {shown(settings.name)} was given in Python; hand it over again, as run(data=...) or "
            "resume(data=...)"
        )
    if files.kind(settings.name):
        return _transformed(*files.load(experiment))
    if ":" in settings.name:
        loaded = usercode.call(settings.name, "dataset.name", {})
    else:
        loaded = datasets.load(settings.name, scaling=settings.normalise)
    if isinstance(loaded, FederatedData):
        return _dealt_out(loaded, experiment)
    if not isinstance(loaded, Dataset):
        raise InputError(
            f"dataset.name: {settings.name} must return a Dataset or FederatedData; got {described(loaded)}"
        )
    if ":" in settings.name:
        train, test = (
            _own(getattr(loaded, which), f"{settings.name}, {which}", loaded.vocabulary) for which in ("train", "test")
        )
        loaded = replace(loaded, train=train, test=test)
    limited = replace(
        loaded,
        train=_limit(loaded.train, settings.train_limit, experiment.seed, "train"),
        test=_limit(loaded.test, settings.test_limit, experiment.seed, "test"),
    )
    share = settings.validation or 0.0
    data = FederatedData.from_dataset(limited, experiment.partition, experiment.clients, experiment.seed, share)
    return _transformed(data, settings)


def _own(part: object, whose: str, vocabulary: int | None) -> Examples:
    """The user's samples, checked."""
    if not isinstance(part, Examples):
        raise InputError(f"dataset.name: {whose} must be Examples; got {described(part)}")
    try:
        checked = examples(part.x, part.y, vocabulary)
    except InputError as error:
        raise InputError(f"dataset.name: {whose}: {error}") from None
    if not len(checked):
        raise InputError(f"dataset.name: {whose} has no samples; give at least one")
    return checked


def _dealt_out(data: FederatedData, experiment: Experiment) -> FederatedData:
    """Data that comes with its clients: refuse settings that would have to deal it out again."""
    settings = experiment.dataset
    asked = {
        "partition.kind": files.deals_anew(experiment.partition, data) and experiment.partition.kind,
        "dataset.train_limit": settings.train_limit,
        "dataset.test_limit": settings.test_limit,
    }
    for field, value in asked.items():
        if value:
            raise InputError(f"{field}={value} needs data that is not yet dealt out to clients; remove it")
    if len(data) != experiment.clients and "clients" in experiment.model_fields_set:
        raise InputError(
            f"clients must be {len(data)}, as many as the data has; got {experiment.clients}; remove it or change it"
        )
    if settings.validation is not None:
        data = data.with_validation(settings.validation, experiment.seed)
    return _transformed(data, settings)


def _transformed(data: FederatedData, settings: DatasetSettings) -> FederatedData:
    augment = data.augment or settings.augment == "crop-flip"
    return replace(data, augment=augment, resize=settings.resize or data.resize)


def _data(experiment: Experiment, given: FederatedData | None) -> tuple[Experiment, FederatedData]:
    if given is None:
        if not _is_users(experiment.dataset.name):
            experiment = experiment.replace(clients=experiment.clients)  # the default number is meant: check it now
        data = federate(experiment)
    else:
        data = _dealt_out(given, experiment)
        datasets.check_scaling(GIVEN + data.name, experiment.dataset.normalise)
        settings = experiment.dataset.model_dump(exclude_unset=True)
        experiment = experiment.replace(dataset={**settings, "name": GIVEN + data.name})
    experiment = files.recorded(experiment, data)
    return experiment.replace(clients=len(data)), data


def _limit(examples: Examples, limit: int | None, seed: int, which: str) -> Examples:
    if limit is None or limit >= len(examples.y):
        return examples
    chosen = np.sort(streams.generator(seed, f"{which} limit").permutation(len(examples.y))[:limit])
    return Examples(examples.x[chosen], examples.y[chosen])


def _model(experiment: Experiment, data: FederatedData, given: nn.Module | None) -> tuple[Experiment, nn.Module]:
    settings = experiment.model
    if given is not None:
        experiment = experiment.replace(model={"name": GIVEN + type(given).__name__})
        module = trial.copied(given)
    elif settings.name.startswith(GIVEN):
        raise InputError(
            f"model.name: {shown(settings.name)} was given in Python; hand it over again, as run(model=...) or "
            "resume(model=...)"
        )
    else:
        with generators.restored():
            _check_memory(experiment, data)
            generators.seed_all(streams.key(experiment.seed, "model") >> 1)
            module = _build(settings.name, settings.options, _inputs(experiment, data))
    if any(
        isinstance(each, UninitializedParameter | UninitializedBuffer)
        for each in (*module.parameters(), *module.buffers())
    ):
        raise InputError(
            "model: it has lazy layers, whose shapes are not known yet; call it once on a batch before, or use layers "
            "with sizes"
        )
    try:
        return experiment, module.to(experiment.device, getattr(torch, experiment.dtype))
    except Exception as error:
        raise InputError(
            f"model: it cannot be moved to {experiment.device} and {experiment.dtype} ({usercode.said(error)})"
        ) from error


def _inputs(experiment: Experiment, data: FederatedData) -> models.Inputs:
    if experiment.task == "sequence" and ":" not in experiment.model.name:
        raise InputError(
            f"model.name: {experiment.model.name} gives one output per sample, but task=sequence needs one per token; "
            "give a model of your own, model=module:function"
        )
    return models.Inputs(data.shape, experiment.objective.outputs(data.classes), data.vocabulary)


def _build(name: str, options: dict[str, Any], inputs: models.Inputs) -> nn.Module:
    if ":" not in name:
        return models.build(name, inputs, **options)
    module = usercode.call(name, "model.name", options)
    if not isinstance(module, nn.Module):
        raise InputError(f"model.name: {name} must return a torch.nn.Module; got {described(module)}")
    return module


def _check_memory(experiment: Experiment, data: FederatedData) -> None:
    """Whether a batch of samples fits into memory, and a model of the zoo with its copies."""
    settings, itemsize = experiment.model, getattr(torch, experiment.dtype).itemsize
    batch = batch_sizes(data, experiment.local)[-1]
    memory.check(
        f"local.batch_size: {batch} samples of shape {data.shape}",
        batch * prod(data.shape) * itemsize,
        "smaller batches, or a smaller dataset.resize",
    )
    if ":" not in settings.name and (size := _size(settings, _inputs(experiment, data))):
        memory.check(
            f"model: {settings.name} for samples of shape {data.shape} has {size:,} parameters",
            COPIES * size * itemsize,
            "a smaller model, or a smaller dataset.resize",
        )


def _size(settings: ModelSettings, inputs: models.Inputs) -> int:
    """Parameters of a model of the zoo, found without its memory; 0 where they cannot be too many."""
    options = {**settings.options, "projection": None}
    width = settings.options["projection"]
    large = prod(inputs.shape) > LARGE_SAMPLE or any(isinstance(v, int) and v > LARGE_OPTION for v in options.values())
    if not large and width is None:
        return 0
    with torch.device("meta") if large else nullcontext():  # the first convolution on meta takes PyTorch seconds
        model = models.build(settings.name, inputs, **options)
    features = model.head.in_features
    between = 0 if width is None else (features + 1) * (features + width) + (width - features) * inputs.classes
    return between + sum(p.numel() for p in model.parameters())


def _check_method(experiment: Experiment, module: nn.Module, data: FederatedData) -> None:
    """Whether the method can train such a model, and be tested on such data."""
    rule, layout = experiment.algorithm.rules()[0], Layout.of(module)
    reason = rule.objection(layout, experiment.local.momentum)
    if reason is None and rule.features != "unused":
        x, _ = (
            data.test_batch(slice(0, 2)) if len(data.test) else data.train_batch(torch.arange(min(2, len(data.train))))
        )
        reason = head_objection(copy.deepcopy(module).eval(), x, rule.features == "logits")
    if reason is not None:
        raise InputError(f"algorithm: {experiment.algorithm.label} cannot be used here, as {reason}")
    if rule.needs_classes and experiment.task != "classification":
        raise InputError(
            f"algorithm: {experiment.algorithm.label} needs task=classification, as {rule.needs_classes}; choose "
            f"another method for task={experiment.task}"
        )
    if not layout.mask(experiment.finetune.part).any():
        raise InputError("finetune.part: this model has no body, as it is all head; use all or head")
    if experiment.evaluate_clients or experiment.finetune_epochs:
        data.test_share(0, experiment.seed)  # refuses data on which clients cannot be tested
    tested = data.site is not None  # other sites may be tested
    if (
        not rule.global_model
        and not tested
        and not any(len(data.test_share(c, experiment.seed)) for c in range(len(data)))
    ):
        raise InputError(
            f"algorithm: {experiment.algorithm.label} is tested on each client's own share of the test set, which "
            "holds none of their classes; give a test set with the classes that clients have"
        )
