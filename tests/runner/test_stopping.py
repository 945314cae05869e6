"""Stopping a run with signals and going on with it, as a user does it at the command line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedkeel import Experiment, RoundEnd, Sink, api
from fedkeel.cli import display
from fedkeel.local.executors import choose
from fedkeel.runner import summary
from fedkeel.runner.stopping import Stop
from tests.helpers.commands import fedkeel
from tests.helpers.folders import left, rows, same
from tests.helpers.processes import begin, ended, nobody_left
from tests.helpers.repository import ROOT

SERIAL = ["executor.kind=serial", "executor.stack=0", "executor.channels_last=false"]
WORKERS = ["executor.kind=processes", "executor.stack=0", "executor.channels_last=false", "executor.workers=2"]
QUICK = [
    "model=linear", "rounds=4", "clients=6", "per_round=3", "dataset.train_limit=60", "dataset.test_limit=30",
    "algorithm=fedasmu", "local.epochs=2", "fleet.speed_ratio=5", "faults.lost_upload=0.1", "faults.twice=0.1",
]  # fmt: skip

Signals = Sequence[int]


@pytest.fixture(autouse=True, scope="module")
def _heard() -> Iterator[None]:
    """Signals as they are in a terminal: some are ignored where tests run in the background."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here
    monkeypatch.setattr("fedkeel.report.curves.learning_curves", lambda _, paths: [path.touch() for path in paths])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    done = fedkeel("run", *QUICK, *SERIAL, "--out", "whole", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "whole"


@contextmanager
def signals_after(round: int, numbers: Signals) -> Iterator[None]:
    """This process gets these signals at once when that round has been told."""
    shown = display.progress

    @contextmanager
    def progress(experiment: Experiment) -> Iterator[Sink]:
        with shown(experiment) as display:

            class Told(Sink):
                def round(self, end: RoundEnd) -> None:
                    display.round(end)
                    if end.round == round:
                        for number in numbers:
                            signal.raise_signal(number)

            yield Told()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "progress", progress)
        yield


def stopped(folder: Path, round: int = 2, numbers: Signals = (signal.SIGINT,), *words: str) -> Any:
    with signals_after(round, numbers):
        return fedkeel("run", *QUICK, *SERIAL, *words, "--out", "a", cwd=folder)


# Going on.


def test_ctrl_c_finishes_the_round_and_says_how_to_go_on(whole: Path, tmp_path: Path) -> None:
    done = stopped(tmp_path)
    assert done.returncode == 130
    first, second = done.stderr.strip().splitlines()
    assert first == "fedkeel: stopping: a round that is not over in 2 s is given up; once more to stop at once"
    assert second == (
        "fedkeel: stopped after round 2; the last checkpoint is a/checkpoint/round-2; resume with: fedkeel run "
        "--resume a"
    )
    assert [row["round"] for row in rows(tmp_path / "a", "history")] == [1, 2]
    again = fedkeel("run", "--resume", "a", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "fedkeel: a goes on after round 2" in again.stderr
    same(whole, tmp_path / "a")


@pytest.mark.slow
def test_sigterm_does_the_same_with_a_code_of_its_own(whole: Path, tmp_path: Path) -> None:
    assert stopped(tmp_path, 3, [signal.SIGTERM]).returncode == 143
    assert fedkeel("run", "--resume", "a", cwd=tmp_path).returncode == 0
    same(whole, tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGINT] * 2, [signal.SIGTERM] * 2, [signal.SIGTERM, signal.SIGINT]])
@pytest.mark.parametrize("every", [1, 3])
def test_the_second_time_it_stops_at_once(whole: Path, tmp_path: Path, numbers: Signals, every: int) -> None:
    done = stopped(tmp_path, 3, numbers, f"checkpoint.rounds={every}")
    assert done.returncode == 128 + numbers[-1]
    safe = (
        "the last checkpoint is a/checkpoint/round-2; resume with"
        if every == 1
        else ("there is no checkpoint yet; start it again with")
    )
    assert f"fedkeel: interrupted; {safe}: fedkeel run --resume a\n" in done.stderr
    assert len(rows(tmp_path / "a", "history")) == 3
    assert fedkeel("run", "--resume", "a", cwd=tmp_path).returncode == 0
    for name in ("clients", "unfinished", "refused", "rounds"):
        assert rows(tmp_path / "a", name) == rows(whole, name)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_signal_before_the_rounds_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "prepare", lambda *_: signal.raise_signal(signal.SIGTERM))
    done = fedkeel("run", *QUICK, *SERIAL, "--out", "a", cwd=tmp_path)
    assert done.returncode == 143
    assert done.stderr == "fedkeel: interrupted\n"
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_a_signal_behind_the_rounds_loses_nothing(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summarise = summary.summarise
    monkeypatch.setattr(api, "summarise", lambda *_: signal.raise_signal(signal.SIGINT))
    done = fedkeel("run", *QUICK, *SERIAL, "--out", "a", cwd=tmp_path)
    assert done.returncode == 130
    assert (
        "fedkeel: interrupted; the last checkpoint is a/checkpoint/round-4; resume with: fedkeel run --resume a"
        in done.stderr
    )
    assert len(done.stderr.splitlines()) == 1
    monkeypatch.setattr(api, "summarise", summarise)
    again = fedkeel("run", "--resume", "a", cwd=tmp_path)
    assert "goes on after round 4" in again.stderr
    same(whole, tmp_path / "a")


@pytest.mark.slow
def test_stopped_as_often_as_one_likes(whole: Path, tmp_path: Path) -> None:
    assert stopped(tmp_path, 1).returncode == 130
    for round in (2, 3):
        with signals_after(round, [signal.SIGINT]):
            assert fedkeel("run", "--resume", "a", cwd=tmp_path).returncode == 130
    assert fedkeel("run", "--resume", "a", cwd=tmp_path).returncode == 0
    same(whole, tmp_path / "a")


# The words behind --resume.


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    assert stopped(folder).returncode == 130
    return folder / "a"


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    shutil.copytree(half, tmp_path / "a")
    return tmp_path


@pytest.mark.slow
def test_resume_with_the_same_description(whole: Path, copy: Path) -> None:
    done = fedkeel("run", *QUICK, "--resume", "a", cwd=copy)
    assert done.returncode == 0, done.stderr
    same(whole, copy / "a")


def test_resume_with_part_of_the_description(whole: Path, copy: Path) -> None:
    done = fedkeel("run", "rounds=4", "model=linear", "--resume", "a", cwd=copy)
    assert done.returncode == 0, done.stderr
    same(whole, copy / "a")


def test_resume_with_its_own_file(whole: Path, copy: Path) -> None:
    done = fedkeel("run", "a/experiment.yaml", "--resume", "a", cwd=copy)
    assert done.returncode == 0, done.stderr
    same(whole, copy / "a")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evaluate_every=2", "evaluate_every=1, not 2"),
        ("local.lr=0.2", "local.lr=0.05, not 0.2"),
        ("algorithm=fedavg", "algorithm.name=fedasmu, not fedavg"),
        ("seed=1", "seed=0, not 1"),
    ],
)
def test_resume_with_a_contradiction_names_it(copy: Path, word: str, said: str) -> None:
    before = left(copy / "a")
    done = fedkeel("run", word, "--resume", "a", cwd=copy)
    assert done.returncode == 2
    assert done.stderr.startswith("fedkeel: --resume: the run in a was started with ")
    assert said in done.stderr
    assert left(copy / "a") == before


def test_resume_keeps_the_stacks(copy: Path) -> None:
    before = left(copy / "a")
    done = fedkeel("run", "executor.stack=2", "--resume", "a", cwd=copy)
    assert done.returncode == 2
    assert done.stderr == (
        "fedkeel: executor: the run was started with executor.stack=0, not 2; when a run is resumed, only kind, "
        "workers, address, cpus, memory may change\n"
    )
    assert left(copy / "a") == before


def test_resume_compares_transforms_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("wire: [{kind: clip, norm: 5}, {kind: cast}]\n")
    described = ["my.yaml", *QUICK, *SERIAL]
    for _ in range(2):
        done = fedkeel("run", *described, "--resume", "a", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "is complete: nothing is left to do" in done.stderr
    for wire, said in (
        ("[{kind: clip, norm: 4}, cast]", "wire.0.norm=5.0, not 4.0;"),
        ("[{kind: clip, norm: 5}, {kind: cast, feedback: true}]", "wire.1.feedback=false, not true;"),
        ("[cast, {kind: clip, norm: 5}]", "wire.0.kind=clip, not cast;"),
        (
            "[{kind: clip, norm: 5}]",
            "wire=[{kind: clip, norm: 5.0}, {kind: cast, dtype: float16, feedback: false}], "
            "not [{kind: clip, norm: 5.0}];",
        ),
        ("[]", ", not [];"),
    ):
        done = fedkeel("run", f"wire={wire}", "--resume", "a", cwd=tmp_path)
        assert done.returncode == 2, wire
        assert "--resume: the run in a was started with wire" in done.stderr
        assert said in done.stderr


def test_resume_and_out_contradict_each_other(copy: Path) -> None:
    before = left(copy / "a")
    done = fedkeel("run", "--resume", "a", "--out", "b", cwd=copy)
    assert done.returncode == 2
    assert "--out: b cannot be combined with --resume" in done.stderr
    assert left(copy / "a") == before
    assert not (copy / "b").exists()


@pytest.mark.slow
def test_resume_begins_a_run_that_was_described(whole: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time it is complete
        done = fedkeel("run", *QUICK, *SERIAL, "--resume", "new", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        same(whole, tmp_path / "new")
    assert "is complete: nothing is left to do" in done.stderr
    assert "final accuracy" in done.stdout


@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_resume_of_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    done = fedkeel("run", "--resume", name, cwd=tmp_path)
    assert done.returncode == 2
    assert f"--resume: {name} holds no run; name a folder" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_resume_does_not_begin_in_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    done = fedkeel("run", *QUICK, *SERIAL, "--resume", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


# The wish itself.


def test_signals_are_a_wish_only_while_somebody_hears() -> None:
    told: list[str] = []
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stop = Stop()
    with stop.on_signals(told.append) as same_one:
        assert same_one is stop
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert (stop.asked, stop.code) == (False, 143)
        stop.heard = True
        signal.raise_signal(signal.SIGINT)
        assert (stop.asked, stop.code, len(told)) == (True, 130, 1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="x"), Stop().on_signals(print):
        raise ValueError("x")
    assert signal.getsignal(signal.SIGINT) is before


# Processes that get them from outside.


def until(folder: Path, rows: int) -> None:
    """So many rounds have been written down."""
    history = folder / "history.jsonl"
    for _ in range(3000):
        if history.exists() and history.read_bytes().count(b"\n") >= rows:
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} has not come so far: {(folder.parent / 'log').read_text()}")


LONG = [word for word in QUICK if not word.startswith("rounds")]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_for_the_whole_group_with_workers(number: int, code: int, tmp_path: Path) -> None:
    """As a terminal or a batch system sends it: to the workers, too."""
    process = begin(tmp_path, "run", *LONG, "rounds=100000", *WORKERS, "--out", "a")
    until(tmp_path / "a", 2)
    os.killpg(process, number)
    assert ended(process) == code, (tmp_path / "log").read_text()
    assert nobody_left(process)
    said = (tmp_path / "log").read_text()
    assert said.count("stopping: a round") == 1
    assert "Traceback" not in said
    last = len(rows(tmp_path / "a", "history"))
    assert f"stopped after round {last}; the last checkpoint is a/checkpoint/round-{last}" in said


@pytest.mark.slow
def test_a_kill_and_a_resume_with_workers(tmp_path: Path) -> None:
    words = [*LONG, "rounds=12", *WORKERS, "checkpoint.rounds=1"]
    whole = begin(tmp_path, "run", *words, "--out", "whole")
    assert ended(whole) == 0, (tmp_path / "log").read_text()
    process = begin(tmp_path, "run", *words, "--out", "a")
    until(tmp_path / "a", 3)
    os.kill(process, signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    resumed = begin(tmp_path, "run", "--resume", "a")  # at once: the workers may still be dying
    assert ended(resumed) == 0, (tmp_path / "log").read_text()
    assert nobody_left(process)
    same(tmp_path / "whole", tmp_path / "a")


LEAVES = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.helpers.workers import orders, settings, workshop
shop = workshop()
executor = shop.executor(settings("processes", workers=2))
executor.train(orders(shop))
"""


@pytest.mark.slow
def test_a_process_that_ends_does_not_wait_for_its_workers() -> None:
    """They hear no SIGTERM, which is what Python sends them at its end."""
    done = subprocess.run([sys.executable, "-c", LEAVES, str(ROOT)], timeout=300, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
