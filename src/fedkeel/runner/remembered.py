"""Choices of an executor, remembered on this machine: the same experiment trains the same way again, bit for bit."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedkeel
from fedkeel.config.section import Section
from fedkeel.data.cache import cache_folder
from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError
from fedkeel.local.executors.choose import Choice
from fedkeel.local.machine import cores, processor
from fedkeel.local.native import library
from fedkeel.local.settings import ExecutorSettings

# What says nothing about speed.
_ASIDE: dict[str, Any] = {
    "name": True,
    "seed": True,
    "evaluate_every": True,
    "evaluate_clients": True,
    "evaluate_local": True,
    "finetune": True,
    "evaluate_classes": True,
    "target": True,
    "target_metric": True,
    "target_accuracy": True,
    "early_stopping": True,
    "stop_at_target": True,
    "fleet": True,
    "faults": True,
    "gate": True,
    "checkpoint": True,
    "limit_wall_seconds": True,
    "init": True,
    "local": {"lr", "lr_decay"},
}


def place(experiment: Section, data: FederatedData, module: nn.Module, workers: int) -> Path:
    """Where the choice for such an experiment on such a machine, with so many workers, is kept."""
    told = {
        "experiment": experiment.model_dump(exclude=_ASIDE),
        "data": [data.shape, int(data.sizes.sum()), int(data.sizes.max()), data.augment],
        "model": [str(module), [(name, list(p.shape), p.requires_grad) for name, p in module.named_parameters()]],
        "machine": [platform.machine(), processor(), cores(), workers],
        "native": found.isa if (found := library.load()) else library.absence(),
        "versions": [fedkeel.__version__, torch.__version__],
    }
    digest = sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()
    try:
        folder = cache_folder()
    except (RuntimeError, InputError):  # nobody has a home here: then nothing is remembered
        folder = Path(os.devnull)
    return folder / "executors" / f"{digest[:32]}.json"


def recall(path: Path) -> Choice | None:
    """What was chosen before, if anything."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        why = told.pop("why_not_native")  # which a choice of an earlier version lacks
        choice = Choice(ExecutorSettings(**told.pop("settings")), **told, why_not_native=why)
    except Exception:  # nothing there, or nothing that makes sense
        return None
    return choice if choice.settings.settled else None


def remember(path: Path, choice: Choice) -> None:
    """For the next time, where the cache can be written."""
    told = {**asdict(choice), "settings": choice.settings.model_dump()}
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
