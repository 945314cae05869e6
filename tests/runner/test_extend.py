"""Runs that are given more rounds, or another end, come out as if they had had it from the start, bit for bit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedkeel import Experiment, InputError, run
from fedkeel.api import resume
from fedkeel.config.section import Section
from fedkeel.local.executors import choose
from fedkeel.local.settings import ExecutorSettings
from fedkeel.methods import methods
from fedkeel.record import lock
from fedkeel.record.checkpoints import Checkpoints
from fedkeel.runner.extend import changed
from fedkeel.runner.recorder import Recorder
from tests.helpers import federation
from tests.helpers.folders import SETTLED, After, faulty, left, resumed, rows, same, stopped
from tests.helpers.methods import small
from tests.helpers.repository import ROOT


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(lock, "_PATIENCE", 1)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here


def given() -> dict[str, Any]:
    return {"data": federation.data(), "model": federation.net(4)}


METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "scaffold": "scaffold",
    "fedssmu": "fedssmu",
    "fedasmu": "fedasmu",
    "fedbuff": {"name": "fedbuff", "buffer_size": 4, "rest": "flush"},
    "fedgh": "fedgh",
}
"""With rounds and without; the buffer is flushed at a run's end, which changes the model."""


def whole(folder: Path, algorithm: Any, **settings: Any) -> Path:
    run(faulty(algorithm, **settings), folder / "whole", **given())
    return folder / "whole"


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("every", [1, 3])
def test_an_extended_run_is_one_that_had_its_rounds_from_the_start(name: str, every: int, tmp_path: Path) -> None:
    """The extra evaluation at the first end is not there any more, nor is what the end did to the model."""
    settings = {"evaluate_every": every, "checkpoint": {"seconds": None}}
    run(faulty(METHODS[name], rounds=4, **settings), tmp_path / "a", **given())
    _, told = resumed(tmp_path / "a", rounds=7, **given())
    assert told == [f"{tmp_path / 'a'} goes on after round 3", "rounds was 4 and is now 7"]
    same(whole(tmp_path, METHODS[name], rounds=7, **settings), tmp_path / "a")


def test_extended_again_and_again(tmp_path: Path) -> None:
    run(faulty("fedavg", rounds=1), tmp_path / "a", **given())
    for rounds in (2, 3, 6):
        resumed(tmp_path / "a", rounds=rounds, **given())
        assert len(rows(tmp_path / "a", "history")) == rounds
    same(whole(tmp_path, "fedavg", rounds=6), tmp_path / "a")


def test_an_end_by_the_virtual_clock_is_moved(tmp_path: Path) -> None:
    history = run(faulty("scaffold"), **given()).history
    limit = (history[2].virtual_seconds + history[3].virtual_seconds) / 2
    run(faulty("scaffold", limit_seconds=limit), tmp_path / "a", **given())
    assert len(rows(tmp_path / "a", "history")) == 3
    resumed(tmp_path / "a", limit_seconds=None, **given())
    same(whole(tmp_path, "scaffold"), tmp_path / "a")


def test_a_target_is_left_out(tmp_path: Path) -> None:
    run(faulty("fedavg", target_accuracy=0.01, stop_at_target=True, evaluate_every=3), tmp_path / "a", **given())
    assert len(rows(tmp_path / "a", "rounds")) == 3
    resumed(tmp_path / "a", stop_at_target=False, **given())
    described = {"target_accuracy": 0.01, "stop_at_target": False, "evaluate_every": 3}
    same(whole(tmp_path, "fedavg", **described), tmp_path / "a")


def test_a_run_that_is_not_over_may_be_shortened(tmp_path: Path) -> None:
    stopped(faulty("fedbuff"), tmp_path / "a", 2, **given())
    resumed(tmp_path / "a", rounds=3, **given())
    same(whole(tmp_path, "fedbuff", rounds=3), tmp_path / "a")


def test_clients_are_fine_tuned_afterwards(tmp_path: Path) -> None:
    """No round is done again for that."""
    run(faulty("fedavg"), tmp_path / "a", **given())
    _, told = resumed(tmp_path / "a", finetune={"epochs": 1}, **given())
    assert told == [f"{tmp_path / 'a'} goes on after round 5"]
    assert "finetuned" in rows(tmp_path / "a", "client_metrics")[0]
    same(whole(tmp_path, "fedavg", finetune={"epochs": 1}), tmp_path / "a")


# Killed while it is extended.


class KilledError(BaseException):
    """Stands for a kill: nobody tidies up after it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedbuff"])
def test_a_kill_at_any_change_of_a_file_loses_nothing(name: str, tmp_path: Path) -> None:
    """Whatever was reached, the same call goes on from there, and a resume without it gives one of the two runs."""
    short, long = faulty(METHODS[name], rounds=2), faulty(METHODS[name], rounds=4)
    run(short, tmp_path / "short", **given())
    run(long, tmp_path / "long", **given())
    changes = {name: getattr(os, name) for name in ("replace", "rename", "unlink")}

    def killed_at(number: int, folder: Path) -> bool:
        """Whether it was killed before it was done."""
        done = 0

        def once(change: Any) -> Any:
            def counted(*told: Any, **named: Any) -> Any:
                nonlocal done
                done += 1
                if done > number:
                    raise KilledError
                return change(*told, **named)

            return counted

        with pytest.MonkeyPatch.context() as patch:
            for each, change in changes.items():
                patch.setattr(os, each, once(change))
            try:
                resume(folder, rounds=4, tell=lambda _: None, **given())
            except KilledError:
                return True
        return False

    number = 0
    while True:
        for again in ({"rounds": 4}, {}):
            folder = tmp_path / f"{number}-{len(again)}"
            shutil.copytree(tmp_path / "short", folder)
            if not killed_at(number, folder):
                assert number > 10
                return
            if (folder / "summary.json").exists():
                same(tmp_path / "short" if "rounds: 2" in described(folder) else tmp_path / "long", folder)
            else:
                resumed(folder, **again, **given())
                same(tmp_path / ("long" if again or "rounds: 4" in described(folder) else "short"), folder)
        number += 1


def described(folder: Path) -> str:
    return (folder / "experiment.yaml").read_text()


@pytest.mark.slow
def test_stopped_while_it_is_extended(tmp_path: Path) -> None:
    run(faulty("fedasmu", rounds=2), tmp_path / "a", **given())
    stop = After(4)
    with pytest.raises(Exception, match="after round 4"):
        resume(tmp_path / "a", rounds=6, stop=stop, progress=stop.progress, tell=print, **given())
    resumed(tmp_path / "a", **given())
    same(whole(tmp_path, "fedasmu", rounds=6), tmp_path / "a")


# What is refused.


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "a"
    run(faulty("fedavg", rounds=3), folder, **given())
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "is complete; to extend it, give it more rounds"),
        ({"rounds": 3}, "is complete; to extend it, give it more rounds"),
        ({"limit_wall_seconds": 60}, "is complete; to extend it, give it more rounds"),
        ({"rounds": 2}, "rounds must be greater than 2, the rounds that the run in .* has done; got 2"),
        ({"rounds": 0}, "rounds"),
        ({"limit_seconds": 1e-9}, "limit_seconds must be greater than .*; got 1e-09"),
        ({"target_accuracy": 0.001, "stop_at_target": True}, "target_accuracy: 0.001 was reached in round 1"),
        ({"seed": 1}, "seed cannot change when a run is resumed; start a new run, or change one of rounds, "),
        ({"evaluate_every": 2}, "evaluate_every cannot change"),
        ({"evaluate_clients": True}, "evaluate_clients cannot change"),
        ({"dat": None}, "dat cannot change"),
        ({"executor": "processes"}, "is complete; to extend it, give it more rounds"),
        ({"executor": {"stack": 2}}, "executor: the run was started with executor.stack=3, not 2; when a run is "),
        ({"executor": {"kind": "ray", "gpus": 1}}, "executor: the run was started with executor.gpus=null, not 1"),
        ({"executor": 5}, "executor"),
        ({"executor": None}, "executor"),
        (
            {"executor": ExecutorSettings(kind="vectorised", stack=2)},
            "executor: .* executor.stack=3, not 2; when a run is ",
        ),
        (
            {"executor": "serial"},
            "executor.kind: the run trains 3 clients at once, which executor.kind=serial does not; when it is resumed, "
            "use vectorised, processes or ray",
        ),
    ],
)
def test_changes_that_are_refused_touch_nothing(done: Path, changes: dict[str, Any], said: str) -> None:
    before = left(done)
    with pytest.raises(InputError, match=said):
        resume(done, **changes, **given())
    assert left(done) == before


def test_a_run_goes_on_in_other_hands(tmp_path: Path) -> None:
    """Who trains makes no difference as long as stacks are the same; what is left open stays as it was."""
    whole(tmp_path, "scaffold")
    stopped(faulty("scaffold"), tmp_path / "moved", 2, **given())
    workers = {"kind": "processes", "workers": 2, "stack": None}
    result, _ = resumed(tmp_path / "moved", executor=workers, **given())
    assert result.summary["executor"]["kind"] == "processes"
    assert result.summary["executor"]["stack"] == 3
    here, there = left(tmp_path / "whole"), left(tmp_path / "moved")
    differ = {name for name in here if here[name] != there[name]}
    assert differ == {"experiment.yaml", "summary.json"}
    again = Experiment.load(tmp_path / "moved" / "experiment.yaml").executor
    assert (again.kind, again.workers, again.stack) == ("processes", 2, 3)


def test_where_a_run_goes_on_may_be_left_open_again() -> None:
    stored = Experiment(executor={"kind": "ray", "address": "10.0.0.1:6379", "workers": 4, "stack": 3})
    moved = changed(Path("a"), stored, {"executor": {"address": None, "workers": None, "stack": None}})
    assert moved is not None
    assert (moved.executor.kind, moved.executor.address, moved.executor.workers) == ("ray", None, None)
    assert moved.executor.stack == 3
    assert changed(Path("a"), stored, {"executor": "auto"}) is None


def test_what_trains_one_client_after_the_other_does_not_go_on_in_stacks() -> None:
    stored = Experiment(executor={**SETTLED["serial"], "native": False})
    said = "the run trains one client after the other, which executor.kind=vectorised does not; .* serial, processes or"
    with pytest.raises(InputError, match=said):
        changed(Path("a"), stored, {"executor": "vectorised"})
    assert changed(Path("a"), stored, {"executor": "processes"}) is not None


def test_worker_processes_have_one_thread_each() -> None:
    """So a run whose operations have several does not train the same there."""
    stored = Experiment(threads=2, executor={**SETTLED["stack"], "native": False})
    said = "executor.kind: a run with threads=2 cannot move from vectorised to processes, as worker processes use one"
    with pytest.raises(InputError, match=said):
        changed(Path("a"), stored, {"executor": "processes"})
    assert changed(Path("a"), stored, {"executor": {"kind": "ray", "cpus": 2}}) is not None


def test_without_a_checkpoint_from_before_its_end(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "checkpoint" / "round-2")
    before = left(tmp_path / "a")
    with pytest.raises(InputError, match="has no checkpoint from before its last round"):
        resume(tmp_path / "a", rounds=9, **given())
    assert left(tmp_path / "a") == before


def test_a_method_that_plans_ahead(tmp_path: Path) -> None:
    run(faulty("fedsa", rounds=2), tmp_path / "a", **given())
    with pytest.raises(InputError, match=r"rounds cannot change .* as the method's local work depends on how many"):
        resume(tmp_path / "a", rounds=9, **given())


def test_any_section_may_plan_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment()
    assert experiment.plans_ahead is None
    monkeypatch.setattr(Section, "plans_ahead", property(lambda self: "so" if self is experiment.fleet else None))
    assert experiment.plans_ahead == "so"


# States in memory.


EVERY = [
    *((METHODS[name], executor) for name in METHODS for executor in SETTLED),
    *((small(name), "serial" if name == "moon" else "stack") for name in methods() if name not in METHODS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "executor"), EVERY)
def test_a_state_that_is_held_stays_as_it_is(
    algorithm: Any, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it changes while the next rounds go on: what is written later is what would have been written then."""
    compared = 0

    class Watched(Recorder):
        def _hold(self, round: int) -> None:
            nonlocal compared
            checkpoints = self._folder.checkpoints
            if self._held:
                assert self._held[-1].intact
                late = Checkpoints(tmp_path / "late", "", checkpoints._classes)
                late.save_held(self._held[-1])
                one, other = (
                    path / f"round-{round - 1}" / "tensors.safetensors" for path in (tmp_path / "now", late.folder)
                )
                assert one.read_bytes() == other.read_bytes()
                compared += 1
            self._hold_next = 0
            super()._hold(round)
            Checkpoints(tmp_path / "now", "", checkpoints._classes).save_held(self._held[-1])

    monkeypatch.setattr("fedkeel.api.Recorder", Watched)
    run(faulty(algorithm, executor, local={"epochs": 3}, checkpoint={"seconds": None}), tmp_path / "a", **given())
    assert compared == 3


# At the command line.

QUICK = [
    "model=linear", "rounds=2", "clients=4", "per_round=2", "dataset.train_limit=40", "dataset.test_limit=20",
    "executor.kind=serial", "executor.stack=0", "executor.channels_last=false",
]  # fmt: skip


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path) -> None:
    def fedkeel(*words: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom fedkeel.cli import main; main()",
        ]
        return subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    for words in (["--out", "a"], ["rounds=4", "--out", "whole"]):
        assert (
            fedkeel("run", *QUICK[:1], *QUICK[2:], *(words if len(words) > 2 else ["rounds=2", *words])).returncode == 0
        )
    done = fedkeel("run", "--resume", "a", "--set", "rounds=4")
    assert done.returncode == 0, done.stderr
    assert "fedkeel: rounds was 2 and is now 4" in done.stderr
    same(tmp_path / "whole", tmp_path / "a")
    again = fedkeel("run", "--resume", "a", "--set", "rounds=4")
    assert "is complete: nothing is left to do" in again.stderr
    refused = fedkeel("run", "--resume", "a", "--set", "seed=4")
    assert refused.returncode == 2
    assert "the run in a was started with seed=0, not 4" in refused.stderr
