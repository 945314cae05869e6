"""When a few long runs share the workers of a cluster, and when whole runs are spread over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedkeel.config.experiment import Experiment
from fedkeel.local.settings import ExecutorSettings
from fedkeel.runner.stopping import Stop
from fedkeel.study import engine, sharing
from fedkeel.study.settle import estimate
from fedkeel.study.store import Store
from fedkeel.study.tasks import Estimate, Refused, Reply, Settled, SettleTask
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
        ([told(stack=10)], 32, None),  # one stack for one worker
    ],
)
def test_each_worker_has_a_stack(cases: list[tuple[Experiment, Estimate]], each: int, workers: int | None) -> None:
    found = sharing.shared(cases, each)
    assert (found and found.workers) == workers


@pytest.mark.parametrize(
    ("runs", "yes"),
    [
        ([told()], True),
        ([told(seconds=1.0), told()], True),
        ([told(seconds=1.0)], False),
        ([told(size=2 * GB), told()], False),  # both run on this machine, which has 3 GB
        ([], False),
    ],
)
def test_runs_must_be_worth_it(runs: list[tuple[Experiment, Estimate]], yes: bool) -> None:
    assert sharing.worth_it([estimate for _, estimate in runs], 2, 3 * GB) is yes


def test_a_shared_run_trains_the_same_stacks() -> None:
    executor = sharing.Shared(4).executor(told(stack=3)[1].executor)
    assert executor.kind == "ray"
    assert (executor.workers, executor.stack, executor.native, executor.channels_last) == (4, 3, False, False)


@pytest.mark.parametrize("executor", [{}, {"workers": 2}])
def test_stacks_are_such_that_all_workers_have_one(executor: dict[str, Any]) -> None:
    """A stack of all clients would be faster on one core."""
    experiment = Experiment(
        dataset={"name": "fashion-mnist-mini", "train_limit": 400, "test_limit": 100}, model="linear", clients=40,
        per_round=20, rounds=2000, executor=executor,
    )  # fmt: skip
    settled = estimate(experiment, workers=10).executor
    assert settled.kind in ("vectorised", "serial")
    assert (settled.stack or 1) <= 2
    assert ExecutorSettings(**settled.model_dump()).workers is None


class Cluster:
    """Has room for many runs; how they train depends on how many workers they may have."""

    size, free = 1, 32

    def __init__(self, seconds: float = 100.0, refuses: bool = False) -> None:
        self.asked: list[int] = []
        self._seconds, self._refuses = seconds, refuses

    def work(self, tasks: Sequence[SettleTask], _: Stop) -> Iterator[tuple[SettleTask, Reply]]:
        for task in tasks:
            self.asked.append(task.workers)
            if self._refuses and task.workers:
                yield task, Refused(task.key, "OSError", "no")
            else:
                yield task, Settled(task.key, told(2 if task.workers else 10, self._seconds)[1])


@pytest.mark.parametrize(
    ("cluster", "asked", "stack", "workers"),
    [
        (Cluster(), [0, 32], 2, 5),
        (Cluster(seconds=1.0), [0], 10, None),  # whole runs are spread: stacks are those that are best on one core
        (Cluster(refuses=True), [0, 32], 10, None),
    ],
)
def test_stacks_are_smaller_only_if_the_cluster_is_shared(
    cluster: Any, asked: list[int], stack: int, workers: int | None, tmp_path: Path
) -> None:
    cases = small("clients=20", "per_round=10", "executor=auto", seeds=[0]).cases
    settled = engine._settle(cluster, cases, Store(tmp_path), Stop(), True)
    found, shared = engine._shared(cluster, cases, settled, Stop())
    assert cluster.asked == asked
    assert [each.executor.stack for each in found.by_name.values()] == [stack]
    assert (shared and shared.workers) == workers


def test_an_executor_that_is_given_is_not_measured_twice(tmp_path: Path) -> None:
    cases, cluster = small("clients=20", "per_round=10", seeds=[0]).cases, Cluster()
    settled = engine._settle(cluster, cases, Store(tmp_path), Stop(), True)  # type: ignore[arg-type]
    assert engine._shared(cluster, cases, settled, Stop()) == (settled, None)  # type: ignore[arg-type]
    assert cluster.asked == [0]


def test_runs_that_were_settled_before_train_as_they_did(tmp_path: Path) -> None:
    """Some of them may have begun."""
    cases, cluster = small("clients=20", "per_round=10", "executor=auto", seeds=[0]).cases, Cluster()
    engine._settle(cluster, cases, Store(tmp_path), Stop(), True).keep(Store(tmp_path))  # type: ignore[arg-type]
    again = engine._settle(cluster, cases, Store(tmp_path), Stop(), True)  # type: ignore[arg-type]
    found, shared = engine._shared(cluster, cases, again, Stop())  # type: ignore[arg-type]
    assert cluster.asked == [0]
    assert found.by_name[cases[0].name].executor.stack == 10
    assert shared is None
