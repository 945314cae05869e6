"""What a node and the server both build from the project's folder: the experiment, the model, and how it trains."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel.config.experiment import Experiment, contradiction
from fedkeel.data.federated import FederatedData
from fedkeel.deploy.settings import EXPERIMENT, MODEL, DeploySettings
from fedkeel.errors import InputError, counted
from fedkeel.local.build import Workshop
from fedkeel.local.executors.choose import APART
from fedkeel.local.settings import ExecutorSettings
from fedkeel.local.trainer import Trainer
from fedkeel.params import FlatModel, Layout
from fedkeel.record.ends import ANY_TIME, ASIDE
from fedkeel.record.places import DEPLOYMENT, begun, complete
from fedkeel.runner.prepare import assemble
from fedkeel.wire.transform import Chain

SERIAL = ExecutorSettings(kind="serial", stack=0, channels_last=False)


@dataclass(frozen=True)
class Project:
    """The folder of a deployment."""

    path: Path
    experiment: Experiment
    settings: DeploySettings

    @classmethod
    def load(cls, path: Path) -> Project:
        """Read it; modules of the user's are looked for there."""
        path = path.resolve()
        settings = DeploySettings.load(path)
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
        experiment = Experiment.load(path / EXPERIMENT)
        _check_modules(path, experiment)
        return cls(path, checked(experiment, len(settings.sites)), settings)

    def check_run(self, out: Path) -> None:
        """Refuse a folder that holds a simulation, or a run of another project."""
        if not begun(out):
            return
        over = complete(out)
        if over and not (out / DEPLOYMENT).exists():
            raise InputError(f"out: {out} holds a simulation; name another folder")
        stored, aside = Experiment.load(out / EXPERIMENT).model_dump(), ANY_TIME if over else ASIDE
        other = contradiction(stored, self.experiment.model_dump(), aside)
        if other is not None:
            raise InputError(f"out: the run in {out} has {other} as in {self.path / EXPERIMENT}; name another folder")


def _check_modules(path: Path, experiment: Experiment) -> None:
    """Refuse a folder without the files that every machine needs."""
    needed = {"data": "it says how a site reads its samples"}
    if experiment.model.name == MODEL:
        needed["model"] = f"{EXPERIMENT} names it"
    for module, why in needed.items():
        if not (path / f"{module}.py").exists() and not (path / module).is_dir():
            raise InputError(f"{path} has no {module}.py; {why}: copy it from the project that fedkeel deploy new made")


def checked(experiment: Experiment, sites: int) -> Experiment:
    """The experiment with a client per site; refuses what only a simulation can do."""
    if "clients" in experiment.model_fields_set and experiment.clients != sites:
        raise InputError(
            f"{EXPERIMENT} has clients={experiment.clients}, and deploy.yaml names {counted(sites, 'site')}; make them "
            "equal"
        )
    experiment = experiment.replace(clients=sites)
    refused = {
        "fleet": experiment.fleet != type(experiment.fleet)(),
        "faults": experiment.faults != type(experiment.faults)(),
        "finetune": "finetune" in experiment.model_fields_set and experiment.finetune_epochs > 0,
    }
    for field, given in refused.items():
        if given:
            raise InputError(f"{field} is for simulations; remove it from {EXPERIMENT}, or use fedkeel run")
    if experiment.checkpoint.rounds is None and "checkpoint" not in experiment.model_fields_set:
        experiment = experiment.replace(checkpoint={"rounds": 1})  # a round on real machines is worth keeping
    if "diverged" not in experiment.gate.model_fields_set:
        gate = experiment.gate.model_dump(exclude_unset=True)
        experiment = experiment.replace(gate={**gate, "diverged": "refuse"})  # one site must not end the run for all
    if experiment.device != "cpu":
        raise InputError(f"device={experiment.device} is for simulations; remove it from {EXPERIMENT}")
    client, server = experiment.algorithm.rules()
    if getattr(client, "reward", "local") == "proxy":
        raise InputError("algorithm.reward=proxy needs samples of other sites, which stay there; use reward=local")
    if experiment.reduce:
        raise InputError(f"reduce is for simulations; remove it from {EXPERIMENT}")
    if server.looks_ahead:
        raise InputError("algorithm.diagnose trains what stragglers missed, which only a simulation can; remove it")
    return experiment


@dataclass(frozen=True)
class Built:
    """The model and how it trains, on data of a node or on stand-ins at the server."""

    experiment: Experiment
    data: FederatedData
    module: nn.Module
    workshop: Workshop
    layout: Layout
    own: bool
    """Whether the data is the sites' own; otherwise it is dealt out of the experiment's data set."""
    own_tests: bool
    """Whether the test rows of sites are their own; otherwise they are drawn from a common test set."""
    flat: FlatModel
    """The first model, until another one is loaded."""

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        data: FederatedData,
        own: bool,
        counts: NDArray[np.int64] | None = None,
        init: Path | None = None,
        own_tests: bool = True,
    ) -> Built:
        """Build the model for this data, and try it.

        `own` says whether the data is the sites' own; `counts` are the labels of all sites, where they are needed.
        """
        experiment, data, module = assemble(experiment, data, None, init, counts, own)
        client, _ = experiment.algorithm.rules()
        flat = FlatModel(module)
        copied, wire = copy.deepcopy(module), Chain(experiment.wire)
        workshop = Workshop(copied, data, client, experiment.local, experiment.seed, wire, experiment.objective)
        return cls(experiment, data, module, workshop, flat.layout, own, own_tests, flat)

    @property
    def first(self) -> tuple[Tensor, Tensor]:
        """Weights and buffers of the first model."""
        return self.flat.w, self.flat.buffers

    def trainer(self) -> Trainer:
        """As the experiment's executor says; without one, by plain PyTorch."""
        asked = self.experiment.executor.completed
        if not asked.settled:
            return self.workshop.trainer(SERIAL)
        return self.workshop.trainer(asked.model_copy(update={"kind": "serial"} if asked.kind in APART else {}))

    @property
    def layout_digest(self) -> str:
        """Of the names and shapes of all parameters and buffers, and of the method and what it sends."""
        client, server = self.experiment.algorithm.rules()
        given = self.experiment
        settings = given.dtype, given.wire, given.local, given.seed, given.task, given.loss
        told = self.layout.parameters, self.layout.buffers, client, server, settings
        return sha256(repr(told).encode()).hexdigest()[:32]

    @property
    def first_digest(self) -> str:
        """Of the first model."""
        found = sha256()
        for tensor in self.first:
            found.update(tensor.numpy().tobytes())
        return found.hexdigest()[:32]


def described(built: Built, client: int) -> dict[str, Any]:
    """What a site tells of its data: counts, shapes and names, never a row."""
    data, train = built.data, built.data.train
    rows = {which: None if own is None else len(own[client]) for which, own in
            (("test", data.test_rows), ("validation", data.validation_rows))}  # fmt: skip
    return {
        "samples": int(data.sizes[client]),
        "tests": rows["test"] or 0,
        "validates": data.validation_rows is not None,
        "validation": rows["validation"] or 0,
        "x": [[*train.x.shape[1:]], str(train.x.dtype)],
        "y": [[*train.y.shape[1:]], str(train.y.dtype)],
        "classes": data.classes,
        "vocabulary": data.vocabulary,
        "class_names": None if data.class_names is None else [*data.class_names],
        "feature_names": None if data.feature_names is None else [*data.feature_names],
        "augment": data.augment,
        "resize": data.resize,
        "own": built.own,
        "own_tests": built.own_tests,
    }
