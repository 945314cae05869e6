"""Files of a run may be read by whom the umask lets read, as with any other program."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedkeel import Experiment, run
from tests.helpers import federation


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mask", "files", "folders"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)])
@pytest.mark.parametrize("name", ["fedavg", "fedgh"])
def test_files_obey_the_umask(name: str, mask: int, files: int, folders: int, tmp_path: Path) -> None:
    executor = {"kind": "serial", "stack": 0, "channels_last": False}
    described = Experiment(algorithm=name, rounds=2, per_round=2, executor=executor, checkpoint={"rounds": 1})
    with umask(mask):
        result = run(described, tmp_path / "a", data=federation.data(), model=federation.net(4))
        result.export(tmp_path / "a" / "exported.safetensors")
    found = {str(path.relative_to(tmp_path)): path for path in (tmp_path / "a").rglob("*")}
    assert any(path.name.endswith(".safetensors") for path in found.values())
    assert (tmp_path / "a" / "checkpoint" / "round-2" / "tensors.safetensors").exists()
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}
    assert modes == {name: folders if path.is_dir() else files for name, path in found.items()}
