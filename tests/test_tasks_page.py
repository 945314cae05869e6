"""docs/tasks.md: its code run and its commands carried out, and its tables against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedkeel import Experiment
from fedkeel.task.metrics import KNOWN
from fedkeel.task.settings import LOSSES, EarlyStoppingSettings, LossSettings
from fedkeel.task.task import _FORMS, DEFAULT_METRICS
from tests.helpers import pages
from tests.helpers.repository import ROOT

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    table = re.search(r"^\|.*?(?=\n\n)", PAGE[PAGE.index(f"\n{heading}\n") :], re.DOTALL | re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


@pytest.mark.slow
def test_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    assert "False" not in pages.carried_out(pages.blocks(PAGE), tmp_path)


def test_the_tasks_are_those_of_the_code() -> None:
    table = {row[0].strip("`"): row for row in rows("## Choose a task")}
    assert [*table] == [*LOSSES]
    for task, (*_, loss, metrics) in table.items():
        assert loss.strip("`") == LOSSES[task][0]
        assert tuple(metrics.split(", ")) == DEFAULT_METRICS[task]


def test_the_losses_are_those_of_the_code() -> None:
    table = {row[0].strip("`"): row[2].split(", ") for row in rows("## Losses")}
    assert table == {
        loss: [task for task in LOSSES if loss in LOSSES[task]] for names in LOSSES.values() for loss in names
    }


def test_the_metrics_are_those_of_the_code() -> None:
    table = {row[0].split("`")[1]: row for row in rows("## Metrics")}
    assert {*table} == {*KNOWN}
    for name, (first, _, better, tasks) in table.items():
        assert better == KNOWN[name].better
        assert first.endswith("*") == (KNOWN[name].by_class is not None)
        assert tasks.split(", ") == [task for task in LOSSES if _FORMS[task] in KNOWN[name].forms]


def test_every_setting_that_the_page_names_exists() -> None:
    assert {*re.findall(r"`loss\.(\w+)", PAGE)} == {*LossSettings.model_fields}
    assert {*re.findall(r"`early_stopping\.(\w+)", PAGE)} == {*EarlyStoppingSettings.model_fields}
    assert {*re.findall(r"`(target\w*|evaluate_c\w+|stop_at_target)[=`]", PAGE)} <= {*Experiment.model_fields}
