"""The evaluations of a run that is going on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkeel.deploy.following import _known, following
from tests.helpers.deployed import deployed, project


@pytest.mark.slow
def test_new_rounds_are_shown(tmp_path: Path) -> None:
    app, shown = project(tmp_path / "app", 2, rounds=2), list[int]()
    with following(tmp_path / "run", lambda row, _: shown.append(row.round)):
        deployed(app, tmp_path / "run")
    assert shown == [1, 2]
    for name in ("history.jsonl", "clients.jsonl"):  # as of a run that ended before its first test
        (tmp_path / "run" / name).write_text("")
    assert _known(tmp_path / "run") == 0


@pytest.mark.slow
def test_rounds_that_were_there_before_are_not_shown_again(tmp_path: Path) -> None:
    app, shown = project(tmp_path / "app", 2, rounds=2), list[int]()
    deployed(app, tmp_path / "run")
    with following(tmp_path / "run", lambda row, _: shown.append(row.round)):
        pass
    assert shown == []
