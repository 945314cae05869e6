"""When a few long runs share the workers of a cluster, and when whole runs are spread over it."""

from __future__ import annotations

from typing import Any

import pytest

from fedkeel.config.experiment import Experiment
from fedkeel.local.settings import ExecutorSettings
from fedkeel.study import sharing
from fedkeel.study.settle import estimate
from fedkeel.study.tasks import Estimate
from tests.helpers.studies import small

GB = 10**9


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "cores", lambda: 2)


@pytest.mark.parametrize(
    ("runs", "jobs", "free", "each"),
    [
        (1, 1, 32, 32), (2, 2, 32, 16), (2, 2, 33, 16), (8, 2, 32, 16), (2, 8, 32, 16),
        (2, 2, 4, 0),  # whole runs fill half of the cluster
        (3, 3, 32, 0),  # this machine has no core for the third
        (0, 1, 32, 0),
    ],
)  # fmt: skip
def test_workers_are_shared_out_if_runs_are_few(runs: int, jobs: int, free: int, each: int) -> None:
    cases = small(seeds=range(runs)).cases if runs else ()
    assert sharing.workers(cases, jobs, free) == each


@pytest.mark.parametrize("word", ["device=cuda", "threads=2"])
def test_what_workers_cannot_do_alike_is_not_shared(word: str) -> None:
    assert sharing.workers(small(word, seeds=[0]).cases, 1, 32) == 0


def told(stack: int = 1, seconds: float = 100.0, size: int = GB, **more: Any) -> tuple[Experiment, Estimate]:
    """A run with 10 clients in a round, and what it takes."""
    kind = "vectorised" if stack else "serial"
    executor = ExecutorSettings(kind=kind, stack=stack, native=False, channels_last=False)
    return Experiment(clients=20, per_round=10, **more), Estimate(executor, seconds, size)


@pytest.mark.parametrize(
    ("cases", "each", "workers"),
    [
        ([told()], 4, 4),
        ([told()], 32, 10),  # as many as a round has stacks
        ([told(stack=0)], 32, 10),
        ([told(stack=3)], 32, 4),
        ([told(), told(stack=5)], 32, 2),
        ([told(seconds=1.0), told()], 4, 4),
        ([told(stack=10)], 32, None),  # one stack for one worker
        ([told(seconds=1.0)], 4, None),
        ([told()], 1, None),
        ([told(size=2 * GB), told()], 4, None),  # both run on this machine, which has 3 GB
        ([], 4, None),
    ],
)
def test_runs_must_be_worth_it(cases: list[tuple[Experiment, Estimate]], each: int, workers: int | None) -> None:
    found = sharing.shared(cases, 2, each, 3 * GB)
    assert (found and found.workers) == workers


def test_a_shared_run_trains_the_same_stacks() -> None:
    executor = sharing.Shared(4).executor(told(stack=3)[1].executor)
    assert executor.kind == "ray"
    assert (executor.workers, executor.stack, executor.native, executor.channels_last) == (4, 3, False, False)


def test_stacks_are_such_that_all_workers_have_one() -> None:
    """A stack of all clients would be faster on one core."""
    experiment = Experiment(
        dataset={"name": "fashion-mnist-mini", "train_limit": 400, "test_limit": 100}, model="linear", clients=40,
        per_round=20, rounds=2000,
    )  # fmt: skip
    settled = estimate(experiment, workers=10).executor
    assert settled.kind in ("vectorised", "serial")
    assert (settled.stack or 1) <= 2
