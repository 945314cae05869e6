"""Small studies, and run folders of studies written by hand."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedkeel.config.experiment import Experiment
from fedkeel.study.engine import Begun
from fedkeel.study.files import StudyFile, comparison
from fedkeel.study.plan import Case, Comparison, Measure
from fedkeel.study.store import Store
from fedkeel.study.tasks import Ended, Moved

OPEN = ["model=linear", "dataset.train_limit=60", "dataset.test_limit=50", "clients=4", "per_round=2", "rounds=3"]
"""The executor is to be settled."""
SERIAL = [*OPEN, "executor=serial"]
Event = Begun | Moved | Ended


def small(*words: str, algorithms: Sequence[str] = ("fedavg",), seeds: Sequence[int] = (0, 1)) -> Comparison:
    """A plan of runs of a fraction of a second."""
    return comparison_of(on_top(*words), algorithms, seeds)


def on_top(*words: str) -> list[str]:
    """Settings of a small run, with others on top."""
    return [*{word.partition("=")[0]: word for word in (*SERIAL, *words)}.values()]


def comparison_of(words: Sequence[str], algorithms: Sequence[str], seeds: Sequence[int]) -> Comparison:
    """Methods on the default experiment with these settings."""
    return comparison(StudyFile(), words, algorithms, seeds)


def variants(told: Mapping[str, Sequence[str]], seeds: Sequence[int] = (0,), words: Sequence[str] = ()) -> Comparison:
    """The same with variants as a file names them."""
    base = Experiment.build({}, on_top(*words)).model_dump(exclude_unset=True)
    given = StudyFile(base=base, variants={name: [*settings] for name, settings in told.items()})
    return comparison(given, seeds=seeds)


class Watch:
    """Keeps what an engine tells, and may do something about it."""

    def __init__(self, act: Callable[[Event], object] = lambda _: None) -> None:
        self.events: list[Event] = []
        self._act = act

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._act(event)

    @property
    def begun(self) -> Begun:
        return next(each for each in self.events if isinstance(each, Begun))

    @property
    def ended(self) -> dict[str, Ended]:
        return {each.name: each for each in self.events if isinstance(each, Ended)}


def row(round: int, accuracy: float, **more: Any) -> dict[str, Any]:
    """An evaluation; every round takes 10 virtual seconds, 3 uploads, and 7 bytes up and down."""
    usual = {"virtual_seconds": 10.0 * round, "updates": 3 * round, "bytes_up": 5 * round, "bytes_down": 2 * round}
    rest = {"loss": 2 - accuracy, "wall_seconds": 0.25 * round, "version": round, "train_loss": 1.0}
    return {"round": round, "accuracy": accuracy, **usual, **rest, **more}


def write_run(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    experiment: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    finished: bool = True,
) -> Path:
    """A run folder by hand."""
    folder.mkdir(parents=True)
    told = {
        "name": None,
        "algorithm": {"name": "fedavg"},
        "partition": {"kind": "iid"},
        "seed": 0,
        **(experiment or {}),
    }
    (folder / "experiment.yaml").write_text(yaml.safe_dump(told))
    (folder / "history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    if finished:
        (folder / "summary.json").write_text(json.dumps({**(summary or {})}))
    return folder


def by_hand(cells: Iterable[tuple[str, str, int]], measure: Measure | None = None) -> Comparison:
    """A plan of (scene, variant, seed)."""
    plan = small(seeds=[0])
    cases = [
        Case(f"{scene}{variant}-{seed}", scene, variant, seed, plan.cases[0].experiment)
        for scene, variant, seed in cells
    ]
    return Comparison("by hand", tuple(cases), measure or Measure())


def fill(
    plan: Comparison, place: Path, runs: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]], **more: Any
) -> None:
    """The folders of a plan with one scene, of finished runs."""
    Store(place).keep(plan)
    for case in plan.cases:
        if (case.variant, case.seed) in runs:
            write_run(Store(place).folder(case.name), runs[case.variant, case.seed], {"seed": case.seed}, **more)


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something; that it never comes is a failure."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


def holder(folder: Path) -> int:
    """A process, other than this one, that has a file of a folder open; 0 if there is none."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(f"{folder}/") and link.parts[2] != str(os.getpid()):
            return int(link.parts[2])
    return 0


def children(parent: int) -> list[int]:
    """Processes of a process that are not dead."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, its_parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(its_parent) == parent and state not in "ZX":
            found.append(int(entry.parent.name))
    return found
