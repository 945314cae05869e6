"""A few long runs on a large cluster: each runs here, and its clients train on workers of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedkeel.config.experiment import Experiment
from fedkeel.local.machine import cores
from fedkeel.local.settings import ExecutorSettings
from fedkeel.study.plan import Case
from fedkeel.study.tasks import Estimate

LONG_SECONDS = 60.0
"""Runs that take longer are worth it."""


@dataclass(frozen=True)
class Shared:
    """How a cluster is shared out among runs."""

    workers: int
    """Of each run."""

    @property
    def words(self) -> str:
        """For the user."""
        return f"as there are few runs, {self.workers} workers of the cluster train the clients of each"

    def executor(self, settled: ExecutorSettings) -> ExecutorSettings:
        """Trains the same stacks in the same way: all that has a bearing on results stays."""
        return ExecutorSettings(**{**settled.model_dump(), "kind": "ray", "workers": self.workers})


def workers(cases: Sequence[Case], jobs: int, free: int) -> int:
    """How many each run could have on a cluster that has so many free; 0 if whole runs are spread.

    Whole runs are better if they fill half of the cluster. Runs that are shared out are driven on this machine, so it
    must have a core for each.
    """
    at_once = min(jobs, len(cases))
    if not cases or 2 * at_once >= free or at_once > cores():
        return 0
    if any(case.experiment.device != "cpu" or case.experiment.threads > 1 for case in cases):
        return 0
    return free // at_once


def shared(cases: Sequence[tuple[Experiment, Estimate]], jobs: int, each: int, free_bytes: int) -> Shared | None:
    """If runs are long, have stacks for several workers in a round, and fit into this machine's memory.

    Each could have so many workers.
    """
    if not cases or each < 2:
        return None
    parts = min(each, *(_stacks(experiment, estimate) for experiment, estimate in cases))
    longest = max(estimate.seconds for _, estimate in cases)
    needed = min(jobs, len(cases)) * max(estimate.bytes for _, estimate in cases)
    return Shared(parts) if parts > 1 and longest > LONG_SECONDS and needed <= free_bytes else None


def _stacks(experiment: Experiment, estimate: Estimate) -> int:
    """Of a round."""
    return -(-experiment.participants // (estimate.executor.stack or 1))
