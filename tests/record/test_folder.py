from pathlib import Path

import pytest

from fedkeel import Experiment, InputError
from fedkeel.record.folder import RunFolder, check_free


def test_new_folders_are_claimed_one_by_one(tmp_path: Path) -> None:
    taken = [RunFolder.below(tmp_path, "a", Experiment()) for _ in range(3)]
    assert [folder.path.name for folder in taken] == ["a", "a-2", "a-3"]
    for folder in taken:
        folder.__exit__()


def test_only_one_run_gets_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(tmp_path / "a", Experiment()):
        monkeypatch.setattr("fedkeel.record.folder.check_free", lambda _: None)  # as if both had looked at once
        with pytest.raises(InputError, match="not empty"):
            RunFolder.create(tmp_path / "a", Experiment())


def test_impossible_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be a folder"):
        check_free(tmp_path / ("x" * 300))
