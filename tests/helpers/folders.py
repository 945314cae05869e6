"""What a run left in its folder, and runs that are stopped on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedkeel import Experiment, Result, RoundEnd, run
from fedkeel.api import resume
from fedkeel.errors import StoppedError
from fedkeel.record.folder import ROWS
from fedkeel.runner.stopping import Stop
from tests.helpers.clock import experiment

SETTLED: dict[str, dict[str, Any]] = {
    "serial": {"kind": "serial", "stack": 0, "channels_last": False},
    "stack": {"kind": "vectorised", "stack": 3, "channels_last": False},
    "processes": {"kind": "processes", "stack": 2, "channels_last": False, "workers": 2},
}
FLEET = {"speed_ratio": 5, "dropout": 0.1, "uplink_mbps": 1e-3, "downlink_mbps": 4e-3}
FAULTS = {"hang": 0.1, "hang_seconds": 20, "lost_upload": 0.1, "twice": 0.1, "old_job": 0.1, "corrupt": 0.1}


def faulty(algorithm: Any, executor: str = "stack", **settings: Any) -> Experiment:
    """Five rounds in which much goes wrong."""
    common = {"rounds": 5, "fleet": FLEET, "faults": FAULTS, "executor": SETTLED[executor]}
    return experiment(algorithm, **{**common, **settings})


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Of `name.jsonl`."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def left(folder: Path) -> dict[str, Any]:
    """Every file's content, real times aside."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        name = path.name
        if path.is_dir():  # checkpoints hold real times; how many there are depends on where the run was stopped
            found[name] = [max(inside.name for inside in path.iterdir()), *path.glob(".*")]
        elif path.suffix in (".png", ".svg"):
            found[name] = None
        elif path.suffix == ".jsonl":
            found[name] = re.sub(r'"wall_seconds": [^,}]+', "", path.read_text())
        elif name == "summary.json":
            told = json.loads(path.read_text())
            found[name] = {key: value for key, value in told.items() if "second" not in key or "virtual" in key}
        else:
            found[name] = path.read_bytes()
    return found


def same(one: Path, other: Path) -> None:
    """Both runs left the same."""
    first, second = left(one), left(other)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert {f"{name}.jsonl" for name in ROWS} <= first.keys()


class After(Stop):
    """Asks for an end after a round."""

    def __init__(self, round: int) -> None:
        super().__init__()
        self.round = round

    def progress(self, end: RoundEnd) -> None:
        self.asked = self.asked or end.round >= self.round


def stopped(described: Experiment, out: Path, after: int, **given: Any) -> str:
    """A run that is stopped after a round, and what it says of that."""
    stop = After(after)
    with pytest.raises(StoppedError, match=f"after round {after}") as error:
        run(described, out, stop=stop, progress=stop.progress, **given)
    return str(error.value)


def stopped_again(out: Path, after: int, **given: Any) -> list[str]:
    """The same for one that is resumed; what was told before."""
    stop, told = After(after), list[str]()
    with pytest.raises(StoppedError, match=f"after round {after}"):
        resume(out, stop=stop, progress=stop.progress, tell=told.append, **given)
    return told


def resumed(out: Path, **given: Any) -> tuple[Result, list[str]]:
    """To its end; with what was told."""
    told: list[str] = []
    return resume(out, tell=told.append, **given), told
