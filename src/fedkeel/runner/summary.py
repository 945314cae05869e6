"""The summary of a run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedkeel.record.measured import METRICS, told
from fedkeel.record.rows import Evaluation
from fedkeel.runner.run import Run


def summarise(run: Run, history: Sequence[Evaluation], reasons: Mapping[str, Any]) -> dict[str, Any]:
    """What `summary.json` holds; `reasons` are those for the choice of the executor."""
    experiment, standing = run.experiment, run.standing()
    last, first = history[-1], run.task.names[0]
    aim, tuning = run.tuning.aim, run.tuning
    reached = tuning.first_to_reach(history)
    best = tuning.best["round"] if tuning.best else None
    return {
        "algorithm": experiment.algorithm.label,
        "dataset": experiment.dataset.name,
        "model": experiment.model.name,
        "partition": experiment.partition.kind,
        "clients": experiment.clients,
        "per_round": experiment.participants,
        "seed": experiment.seed,
        "rounds": last.round,
        "task": experiment.task,
        METRICS: told(run.task.metrics),
        "tested": "global model" if standing.global_model else "clients' own models",
        "clients_tested_on": "own rows" if run.clients_have_tests else "estimates from the common test set",
        **last.metrics,
        f"final_{first}": last.metrics[first],
        f"best_{first}": next((row.metrics[first] for row in history if row.round == best), None),
        "final_loss": last.loss,
        "validation": last.validation,
        "tuned_on": "test" if last.validation is None else "validation",
        "best_round": best,
        "ended_early": tuning.why,
        "target_metric": aim.metric,
        "target": aim.target,
        "target_accuracy": experiment.target_accuracy,
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
        "wall_seconds": run.wall_seconds,
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
