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
    """Of each run, at most: a run begins with those that are left."""

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


def worth_it(estimates: Sequence[Estimate], jobs: int, free_bytes: int) -> bool:
    """Whether runs are long, and so many at a time fit into this machine's memory."""
    if not estimates:
        return False
    needed = min(jobs, len(estimates)) * max(each.bytes for each in estimates)
    return max(each.seconds for each in estimates) > LONG_SECONDS and needed <= free_bytes


def shared(cases: Sequence[tuple[Experiment, Estimate]], each: int) -> Shared | None:
    """If runs that could have so many workers each have stacks for several of them in a round."""
    parts = min(each, *(_stacks(experiment, estimate) for experiment, estimate in cases))
    return Shared(parts) if parts > 1 else None


def _stacks(experiment: Experiment, estimate: Estimate) -> int:
    """Of a round."""
    return -(-experiment.participants // (estimate.executor.stack or 1))
