"""The summary of a run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedkeel.record.rows import Evaluation
from fedkeel.runner.simulation import Simulation


def summarise(simulation: Simulation, history: Sequence[Evaluation], reasons: Mapping[str, Any]) -> dict[str, Any]:
    """What `summary.json` holds; `reasons` are those for the choice of the executor."""
    experiment, standing = simulation.experiment, simulation.standing()
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
        "tested": "global model" if standing.global_model else "clients' own models",
        "final_accuracy": last.accuracy,
        "best_accuracy": max(e.accuracy for e in history),
        "final_loss": last.loss,
        "target_accuracy": target,
        "rounds_to_target": reached.round if reached else None,
        "virtual_seconds": standing.virtual_seconds,
        "virtual_seconds_to_target": reached.virtual_seconds if reached else None,
        "updates_to_target": reached.updates if reached else None,
        "bytes_to_target": reached.bytes_up + reached.bytes_down if reached else None,
        "bytes_up": standing.bytes_up,
        "bytes_down": standing.bytes_down,
        "updates": standing.updates,
        "updates_refused": standing.updates_refused,
        "uploads_turned_away": standing.uploads_turned_away,
        "jobs_lost": standing.jobs_lost,
        "jobs_in_flight": standing.jobs_in_flight,
        "wall_seconds": simulation.wall_seconds,
        "seconds_per_round_median": float(np.median(standing.round_seconds)),
        "samples_per_second": standing.samples / standing.seconds,
        "parameters": standing.parameters,
        "executor": experiment.executor.model_dump(),
        **reasons,
        "device": experiment.device,
        "threads": experiment.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
