"""A worker by itself: what it hears, and when."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from fedkeel.config.experiment import Experiment
from fedkeel.record.folder import complete
from fedkeel.study import worker
from fedkeel.study.tasks import Ended, Moved, Refused, RunTask, Settled, SettleTask, Stopping
from fedkeel.study.worker import done
from tests.helpers.studies import OPEN, on_top

PATIENCE = 60


@pytest.fixture
def started() -> Iterator[tuple[Connection, BaseProcess]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedkeel.study.worker"])
    ours, theirs = context.Pipe()
    process = context.Process(target=worker.work, args=(theirs, frozenset(os.sched_getaffinity(0)), 2))
    process.start()
    theirs.close()
    yield ours, process
    ours.close()
    process.join(PATIENCE)
    assert process.exitcode == 0  # it ends when nobody can talk to it any more
    process.close()


def answer(connection: Connection) -> object:
    """The first one that is no news of a run."""
    while True:
        assert connection.poll(PATIENCE)
        found = connection.recv()
        if not isinstance(found, Moved):
            return found


def task(folder: Path, *words: str) -> RunTask:
    return RunTask("x", Experiment.build({}, on_top(*words)), folder)


def test_a_wish_to_stop_counts_however_early_it_comes(started: tuple[Connection, BaseProcess], tmp_path: Path) -> None:
    connection, _ = started
    connection.send(task(tmp_path / "a"))
    connection.send(Stopping())
    assert answer(connection) == Ended("x", "stopped")
    connection.send(task(tmp_path / "a"))  # and is over with that task
    found = answer(connection)
    assert isinstance(found, Ended)
    assert found.state == "finished"


def test_signals_that_a_whole_group_gets_are_for_the_parent(
    started: tuple[Connection, BaseProcess], tmp_path: Path
) -> None:
    connection, process = started
    connection.send(task(tmp_path / "a", "rounds=20"))
    assert connection.poll(PATIENCE)
    assert isinstance(connection.recv(), Moved)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process.pid or 0, number)
    found = answer(connection)
    assert isinstance(found, Ended)
    assert found.state == "finished"


def test_a_run_that_is_complete_is_not_run_again_and_a_damaged_one_is_told(
    started: tuple[Connection, BaseProcess], tmp_path: Path
) -> None:
    connection, _ = started
    for _ in range(2):
        connection.send(task(tmp_path / "a"))
        found = answer(connection)
        assert isinstance(found, Ended)
        assert found.state == "finished"
    assert complete(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "experiment.yaml").write_text("[")
    connection.send(task(tmp_path / "b"))
    found = answer(connection)
    assert isinstance(found, Ended)
    assert (found.state, found.kind) == ("failed", "InputError")
    assert "not valid YAML" in found.error


def test_a_folder_that_cannot_be_used_is_a_mishap(started: tuple[Connection, BaseProcess], tmp_path: Path) -> None:
    connection, _ = started
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "letter.txt").touch()
    connection.send(task(tmp_path / "a"))
    found = answer(connection)
    assert isinstance(found, Ended)
    assert (found.state, found.kind) == ("failed", "MishapError")
    assert "is not empty" in found.error


def test_executors_are_settled_or_a_sentence_says_why_not(started: tuple[Connection, BaseProcess]) -> None:
    connection, _ = started
    connection.send(SettleTask("k", Experiment.build({}, OPEN)))
    found = answer(connection)
    assert isinstance(found, Settled)
    assert found.key == "k"
    assert found.estimate.executor.settled
    connection.send(SettleTask("k", Experiment.build({}, [*OPEN, "partition={kind: shards, shards_per_client: 50}"])))
    refused = answer(connection)
    assert isinstance(refused, Refused)
    assert (refused.key, refused.kind, refused.exit_code) == ("k", "InputError", 2)
    assert refused.error.startswith("partition")


def test_the_share_of_a_run_that_is_done_is_by_rounds_or_by_the_clock() -> None:
    plain, clocked = Experiment(rounds=10), Experiment(rounds=10, limit_seconds=100.0)
    assert (done(plain, 3, 99.0), done(clocked, 3, 50.0), done(clocked, 7, 50.0)) == (0.3, 0.5, 0.7)
    assert done(clocked, 3, 500.0) == 1.0


STARTED = """
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from fedkeel.study.crew import Crew
if __name__ == "__main__":
    with Crew(1) as crew:
        worker = crew._start(0).process
        for pid in (worker.pid, _forkserver._forkserver_pid):
            print(Path(f"/proc/{pid}/status").read_text().partition("SigBlk:")[2].split()[0])
        worker.kill()
        worker.join()
"""


@pytest.mark.slow
def test_signals_are_for_the_parent_alone() -> None:
    """A Ctrl-C goes to the whole group of processes, also to those that are still importing."""
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=60, check=True)
    masks = [int(line, 16) for line in done.stdout.split()]
    assert len(masks) == 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert all(mask >> (number - 1) & 1 for mask in masks)
