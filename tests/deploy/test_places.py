"""Folders of a deployment: those for sockets do not stay behind."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from fedkeel.deploy.keys import Keys
from fedkeel.deploy.node import enroll
from fedkeel.deploy.places import LOCK, MEETING, meeting_place
from fedkeel.errors import InputError


@pytest.fixture
def left() -> Path:
    """A folder that a killed process has left, an hour ago."""
    made = Path(tempfile.mkdtemp(prefix=MEETING, dir="/tmp"))
    (made / LOCK).touch()
    (made / "site-1").touch()
    os.utime(made, (1, 1))
    return made


def test_a_folder_of_a_process_that_is_gone_is_removed(left: Path) -> None:
    with meeting_place() as own:
        assert own.is_dir()
        assert not left.exists()
    assert not own.exists()


def test_a_folder_that_is_in_use_or_new_stays(left: Path) -> None:
    os.utime(left)
    with meeting_place() as other:
        os.utime(other, (1, 1))
        with meeting_place():
            assert other.is_dir()
            assert left.is_dir()
    shutil.rmtree(left)


def test_without_the_package_for_keys_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", ModuleType("nothing"))
    with pytest.raises(InputError, match="needs Flower; run pip install"):
        Keys(tmp_path / "keys").make([])
    with pytest.raises(InputError, match="needs Flower; run pip install"):
        enroll("north", tmp_path / "own")
    assert [*tmp_path.iterdir()] == []
