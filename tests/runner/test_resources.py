"""A long run holds on to no more than a short one."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedkeel import Experiment, RoundEnd, run
from fedkeel.record.folder import ROWS
from tests.helpers import federation

SETTINGS: dict[str, Any] = {
    "per_round": 3,
    "rounds": 100,
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.05},
    "fleet": {"speed_ratio": 5, "dropout": 0.1, "uplink_mbps": 5},
    "faults": {"hang": 0.05, "hang_seconds": 60, "lost_upload": 0.05, "twice": 0.1, "old_job": 0.05, "corrupt": 0.05},
    "executor": {"kind": "vectorised", "stack": 3, "channels_last": False},
    "evaluate_every": 10,
    "checkpoint": {"rounds": 5},
}


@pytest.fixture
def _only_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What there was before is neither counted nor searched, and nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("_only_ours")
@pytest.mark.parametrize("algorithm", ["scaffold", "fedagg", "fedasmu", "fedbuff"])
def test_nothing_grows_but_the_rows(algorithm: str, tmp_path: Path) -> None:
    """Neither tensors in memory nor anything on the disk."""
    folder, tensors, disk = tmp_path / "run", [], []

    def look(end: RoundEnd) -> None:
        if end.round % 20 == 0:
            gc.collect()
            tensors.append(sum(issubclass(type(each), Tensor) for each in gc.get_objects()))
            files = [path for path in folder.rglob("*") if path.is_file() and path.stem not in ROWS]
            disk.append(sum(path.stat().st_size for path in files if path.name != "state.json"))
            assert len(files) <= 7
            assert not [path for path in folder.rglob("*") if path.name.startswith(".")]

    run(
        Experiment(algorithm=algorithm, **SETTINGS),
        folder,
        data=federation.data(),
        model=federation.net(),
        progress=look,
    )
    half = len(tensors) // 2
    assert max(tensors[half:]) <= 1.5 * max(tensors[:half])
    assert max(disk[half:]) <= 1.5 * max(disk[:half])
    assert not [path for path in folder.rglob("*") if path.name.startswith(".") or path.suffix == ".partial"]
