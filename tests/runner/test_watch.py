"""Runs that are to stop while a round goes on: it is given up, and repeated when the run is resumed, bit for bit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from fedkeel import RoundEnd, Sink, Start, run
from fedkeel.api import resume
from fedkeel.errors import StoppedError, TimeLimitError
from fedkeel.local.executors import choose
from fedkeel.local.native import library
from fedkeel.record import lock
from fedkeel.runner import recorder, watch
from fedkeel.runner.stopping import Stop
from fedkeel.runner.watch import GivenUpError, Watch
from tests.helpers import federation
from tests.helpers.commands import fedkeel
from tests.helpers.folders import faulty, resumed, rows, same
from tests.helpers.processes import begin, ended, nobody_left


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(lock, "_PATIENCE", 1)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here
    monkeypatch.setattr(watch, "GRACE", 0.05)
    monkeypatch.setattr(watch, "_TICK", 0.01)
    monkeypatch.setattr(recorder, "SELDOM", 0)


class Endless(nn.Module):
    """A model that takes for ever while a file is there, and says so by another one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.net, self.folder = federation.net(4), folder

    def forward(self, x: Tensor) -> Tensor:
        while (self.folder / "endless").exists():
            (self.folder / "reached").touch()
            time.sleep(0.001)
        out: Tensor = self.net(x)
        return out


def given(folder: Path) -> dict[str, Any]:
    return {"data": federation.data(), "model": Endless(folder)}


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[Stop]:
    """Asks for an end when the model takes for ever."""
    stop, over = Stop(), threading.Event()

    def ask() -> None:
        while not over.wait(0.005):
            stop.asked = stop.asked or (tmp_path / "reached").exists()

    thread = threading.Thread(target=ask)
    thread.start()
    yield stop
    over.set()
    thread.join()


def endless_from(round: int, folder: Path) -> Any:
    def progress(end: RoundEnd) -> None:
        if end.round == round - 1:
            (folder / "endless").touch()

    return progress


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack", "processes"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedasmu", "fedbuff"])
def test_a_round_that_takes_long_is_given_up_and_repeated(name: str, executor: str, tmp_path: Path, stop: Stop) -> None:
    described = faulty(name, executor, checkpoint={"seconds": None})
    run(described, tmp_path / "whole", **given(tmp_path))
    with pytest.raises(
        StoppedError, match=r"^stopped in round 3; the round will be repeated; the last checkpoint is .*-2; "
    ):
        run(described, tmp_path / "a", stop=stop, progress=endless_from(3, tmp_path), **given(tmp_path))
    assert len(rows(tmp_path / "a", "rounds")) == 2
    (tmp_path / "endless").unlink()
    _, told = resumed(tmp_path / "a", **given(tmp_path))
    assert told == [f"{tmp_path / 'a'} goes on after round 2"]
    same(tmp_path / "whole", tmp_path / "a")


def test_in_the_first_round_there_is_nothing_to_go_on_from(tmp_path: Path, stop: Stop) -> None:
    described, handed = faulty("fedavg", "serial"), given(tmp_path)
    run(described, tmp_path / "whole", **handed)

    class FromTheStart(Sink):
        def begin(self, start: Start) -> None:
            (tmp_path / "endless").touch()

    with pytest.raises(
        StoppedError, match=r"^stopped in round 1; .*; there is no checkpoint yet; start it again with: "
    ):
        run(described, tmp_path / "a", stop=stop, sinks=[FromTheStart()], **handed)
    (tmp_path / "endless").unlink()
    resumed(tmp_path / "a", **handed)
    same(tmp_path / "whole", tmp_path / "a")


def test_without_a_folder(tmp_path: Path, stop: Stop) -> None:
    with pytest.raises(StoppedError, match=r"^stopped in round 2; nothing was recorded, as there is no run folder$"):
        run(faulty("fedavg", "serial"), stop=stop, progress=endless_from(2, tmp_path), **given(tmp_path))


def test_in_a_thread_of_its_own(tmp_path: Path, stop: Stop) -> None:
    """Not only the main thread can be interrupted."""
    said: list[str] = []

    def work() -> None:
        try:
            run(faulty("fedavg", "serial"), stop=stop, progress=endless_from(2, tmp_path), **given(tmp_path))
        except StoppedError as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert said
    assert said[0].startswith("stopped in round 2")


def test_while_clients_are_tested(tmp_path: Path, stop: Stop) -> None:
    described = faulty("fedavg", "serial", evaluate_clients=True)
    run(described, tmp_path / "whole", **given(tmp_path))
    with pytest.raises(StoppedError, match="after the last round, while clients were tested; the last check"):
        run(described, tmp_path / "a", stop=stop, progress=endless_from(6, tmp_path), **given(tmp_path))
    (tmp_path / "endless").unlink()
    resumed(tmp_path / "a", **given(tmp_path))
    same(tmp_path / "whole", tmp_path / "a")


# A limit of real time.


def test_a_limit_of_real_time_stops_a_round_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = faulty("fedavg", "serial", limit_wall_seconds=1e6)
    run(described, tmp_path / "whole", **given(tmp_path))
    now = watch.monotonic
    late = [0.0]
    monkeypatch.setattr(watch, "monotonic", lambda: now() + late[0])

    def progress(end: RoundEnd) -> None:
        if end.round == 3:
            (tmp_path / "endless").touch()

    def later() -> None:
        while not (tmp_path / "reached").exists():
            time.sleep(0.005)
        late[0] = 1e6

    thread = threading.Thread(target=later)
    thread.start()
    with pytest.raises(TimeLimitError, match=r"^stopped in round 4, as .*; resume with: fedkeel\.resume\(") as error:
        run(described, tmp_path / "a", progress=progress, **given(tmp_path))
    thread.join()
    assert error.value.exit_code == 75
    assert "limit_wall_seconds=1e+06 is used up" in str(error.value)
    (tmp_path / "endless").unlink()
    resumed(tmp_path / "a", **given(tmp_path))  # with seconds of its own
    same(tmp_path / "whole", tmp_path / "a")


def test_a_limit_of_real_time_stops_between_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE", 60)
    described = faulty("fedavg", "serial", limit_wall_seconds=1e-3)
    handed = {"data": federation.data(), "model": federation.net(4)}
    with pytest.raises(
        TimeLimitError, match=r"^stopped after round 1, as limit_wall_seconds=0.001 is used up; the last"
    ):
        run(described, tmp_path / "a", **handed)
    for round in (2, 3):
        with pytest.raises(TimeLimitError, match=f"^stopped after round {round}, "):
            resume(tmp_path / "a", tell=lambda _: None, **handed)
    resumed(tmp_path / "a", limit_wall_seconds=None, **handed)
    run(faulty("fedavg", "serial"), tmp_path / "whole", **handed)
    same(tmp_path / "whole", tmp_path / "a")


def test_a_limit_of_real_time_that_is_too_short_for_a_round(tmp_path: Path) -> None:
    class FromTheStart(Sink):
        def begin(self, start: Start) -> None:
            (tmp_path / "endless").touch()

    described = faulty("fedavg", "serial", limit_wall_seconds=0.1)
    with pytest.raises(TimeLimitError, match=r"^stopped in round 1, as .*; no round was over in this time, so give it"):
        run(described, tmp_path / "a", sinks=[FromTheStart()], **given(tmp_path))


# The watch itself.


def test_what_is_over_in_time_is_not_interrupted() -> None:
    stop = Stop()
    with Watch(stop, None) as watching:
        stop.asked = True
        with watching.impatiently():
            pass
        time.sleep(0.2)


def stubborn() -> None:
    """Tries something else after every error."""
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


def test_what_an_interruption_meets() -> None:
    stop = Stop()
    with Watch(stop, None) as watching:
        stop.asked = True
        with pytest.raises(GivenUpError), watching.impatiently():
            stubborn()
        for _ in range(1000):
            pass


def test_nobody_watches_a_run_that_cannot_be_asked() -> None:
    before = threading.active_count()
    with Watch(None, None):
        assert threading.active_count() == before


# Processes that get signals from outside.

LONG = ["clients=64", "per_round=64", "rounds=3", "dataset.train_limit=2000", "local.epochs=500", "local.batch_size=8"]
"""A native kernel does a client's job in one call, which is not interrupted; here it takes a second."""
EXECUTORS = {
    "serial": ["model=lenet5", "executor.kind=serial", "executor.stack=0", "executor.channels_last=false"],
    "stacks": ["model=mlp-400", "executor.kind=vectorised", "executor.stack=4", "executor.channels_last=false"],
    "processes": ["model=lenet5", "executor.kind=processes", "executor.stack=0", "executor.workers=2"],
    "threads": ["model=lenet5", "executor.kind=threads", "executor.stack=4", "executor.workers=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_signal_in_a_round_that_would_take_minutes(executor: str, number: int, tmp_path: Path) -> None:
    if executor == "threads" and (absence := library.absence()):
        pytest.skip(absence)
    process = begin(tmp_path, "run", *LONG, *EXECUTORS[executor], "--out", "a")
    for _ in range(3000):
        if (tmp_path / "a" / "labels.json").exists():
            break
        time.sleep(0.02)
    time.sleep(1)  # well within the first round
    os.killpg(process, number)
    assert ended(process) == 128 + number, (tmp_path / "log").read_text()
    assert nobody_left(process)
    said = (tmp_path / "log").read_text()
    assert (
        "fedkeel: stopped in round 1; the round will be repeated; there is no checkpoint yet; start it again with: "
        in said
    )
    assert said.rstrip().endswith("fedkeel run --resume a")


@pytest.mark.slow
def test_a_limit_of_real_time_in_a_comparison(tmp_path: Path) -> None:
    """Each run has its own; the same command goes on with all of them."""
    common = ["model=linear", "clients=4", "per_round=2", "rounds=2", "dataset.train_limit=40", "dataset.test_limit=20"]
    compare = ["compare", "--algorithms", "fedavg,fedprox", "--seeds", "0", *common, "limit_wall_seconds=0.001"]
    done = fedkeel(*compare, "--out", "c", cwd=tmp_path)
    assert done.returncode == 75
    assert "fedkeel: limit_wall_seconds is used up in 2 of 2 runs; the same command continues from here" in done.stderr
