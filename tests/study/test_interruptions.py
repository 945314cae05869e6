"""Comparisons whose process is killed: nobody is left, and a restart ends with the same table, byte for byte."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fedkeel import cli
from fedkeel.study import crew
from fedkeel.study.engine import Begun, execute
from fedkeel.study.export import as_csv, write
from fedkeel.study.kept import PLAN
from fedkeel.study.plan import Comparison
from fedkeel.study.results import collect
from fedkeel.study.store import EXECUTORS, Store
from fedkeel.study.table import columns
from fedkeel.study.tasks import Ended, Moved, SettleTask
from tests.helpers.processes import ended, forked
from tests.helpers.repository import ROOT
from tests.helpers.studies import Event, children, until, variants

TABLE = "table.csv"
Set = Callable[[pytest.MonkeyPatch], "Callable[[Event], None] | None"]


def killed(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def writing(name: str) -> Set:
    """When a file is complete under its temporary name."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        replace = os.replace
        monkeypatch.setattr(os, "replace", lambda a, b: killed() if Path(b).name == name else replace(a, b))

    return patch


def told(which: Callable[[Event], bool]) -> Set:
    """When the engine tells something."""
    return lambda _: lambda event: killed() if which(event) else None


def settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """While workers measure executors."""
    hand = crew.Crew._hand

    def handed(self: crew.Crew, free: Any) -> None:
        hand(self, free)
        if isinstance(free.task, SettleTask):
            time.sleep(0.1)
            killed()

    monkeypatch.setattr(crew.Crew, "_hand", handed)


MOMENTS: dict[str, Set] = {
    "the plan is written": writing(PLAN),
    "settling": settling,
    "executors are written": writing(EXECUTORS),
    "settled": told(lambda event: isinstance(event, Begun)),
    "early": told(lambda event: isinstance(event, Moved)),
    "in mid-run": told(lambda event: isinstance(event, Moved) and event.round >= 1),
    "in the second run": told(lambda event: isinstance(event, Moved) and event.name.endswith("seed1")),
    "between runs": told(lambda event: isinstance(event, Ended) and event.state == "finished"),
    "a failure is noted": writing("wild-seed0.json"),
    "the table is written": writing(TABLE),
}


def plan() -> Comparison:
    """Of two that train as is measured, and one that diverges."""
    found = {"plain": [], "asmu": ["algorithm=fedasmu"], "wild": ["local.lr=1.0e+38"]}
    return variants(found, seeds=[0, 1], words=["executor=auto", "checkpoint.rounds=1"])


def compare(place: Path, watch: Callable[[Event], None] | None = None) -> bytes:
    """As the command does it."""
    made = plan()
    Store(place).keep(made)
    execute(made.cases, place, jobs=2, watch=watch)
    write(place / TABLE, as_csv(columns(collect(made, place))))
    return (place / TABLE).read_bytes()


def server() -> int:
    """The process that workers are forked from; by now it has none."""
    forkserver.set_forkserver_preload(["fedkeel.study.worker"])
    forkserver.ensure_running()
    found = forkserver._forkserver  # type: ignore[attr-defined]
    until(lambda: not children(found._forkserver_pid))
    return int(found._forkserver_pid)


def beside(work: Callable[[], object], log: Path) -> int:
    """A process that takes workers from the same server, which has loaded everything."""

    def take() -> None:
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
        work()

    return forked(take, log)


def compare_until(moment: Set, place: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        compare(place, moment(monkeypatch))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of a comparison that nobody disturbed."""
    return compare(tmp_path_factory.mktemp("whole") / "out")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_comparison_comes_out_as_if_it_had_not_been(moment: str, whole: bytes, tmp_path: Path) -> None:
    assert whole.count(b"\n") == 4
    place, parent = tmp_path / "out", server()
    process = beside(lambda: compare_until(MOMENTS[moment], place), tmp_path / "log")
    assert ended(process) == -signal.SIGKILL, (tmp_path / "log").read_text()
    until(lambda: not children(parent), seconds=10)
    assert not (place / TABLE).exists()
    assert compare(place) == whole
    assert compare(place) == whole  # also with nothing left to do


def test_workers_die_with_their_parent_whatever_they_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import pathlib, time\n\n\ndef draw(*_):\n    pathlib.Path(__file__ + '.begun').touch()\n    time.sleep(3600)\n"
    )
    (tmp_path / "endless.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    made, parent = variants({"round": ["sampling=endless:draw"]}), server()
    process = beside(lambda: execute(made.cases, tmp_path / "out"), tmp_path / "log")
    until((tmp_path / "endless.py.begun").exists)
    (worker,) = children(parent)
    os.kill(process, signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    try:
        until(lambda: not children(parent), seconds=10)
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def command(words: Sequence[str], log: Path) -> int:
    """As `kills.fork`, with a server of its own that workers are forked from."""

    def give() -> None:
        forkserver._forkserver.__init__()  # type: ignore[attr-defined]
        sys.argv = ["fedkeel", *words]
        cli.main()

    return forked(give, log)


@pytest.mark.slow
def test_commands_that_are_killed_come_out_as_if_they_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import kill_comparisons
    import kills

    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path))
    monkeypatch.setitem(kill_comparisons.STUDY["base"], "rounds", 4)
    monkeypatch.setattr("fedkeel.cli.outcome.figures", lambda *_: None)  # they take as long as all the rest
    whole = kill_comparisons.comparison(tmp_path, command)
    where, wrong = kills.one_kill(whole, 2, 0, command)  # which is killed twice
    assert not wrong, f"{where}: {wrong}"
