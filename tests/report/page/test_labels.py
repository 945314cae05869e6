"""The map of labels: dealt out as in the run, and never by running a user's code or by going to the network."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.config.experiment import Experiment
from fedkeel.data import cache
from fedkeel.report.page import labels
from fedkeel.report.page.cells import cells
from fedkeel.runner.prepare import federate
from fedkeel.study.results import Results

Make = Callable[..., Results]


def way(**described: Any) -> dict[str, Any]:
    return labels._map(labels._way(described))


def test_counts_are_those_of_the_run(compared: Results) -> None:
    (found,) = labels.labels(cells(compared))
    run = compared.outcomes[0].record
    assert run is not None
    counts = federate(Experiment.build(run.experiment)).label_counts()
    np.testing.assert_array_equal(found["counts"], counts)
    assert (found["least"], found["most"]) == (counts.sum(1).min(), counts.sum(1).max())
    assert found["cells"] == [{"scene": 0, "variant": variant} for variant in range(3)]


def test_of_many_clients_the_first_are_shown(written: Make) -> None:
    (found,) = labels.labels(cells(written(["a"], seeds=[0], clients=120)))
    assert (found["clients"], len(found["counts"])) == (120, 100)


def test_ways_that_differ_have_maps_of_their_own(written: Make) -> None:
    one, other = written(["a"], seeds=[0]), written(["b"], seeds=[0], clients=8)
    found = labels.labels([*cells(one), *cells(other)])
    assert [each["clients"] for each in found] == [6, 8]


def test_code_of_the_user_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_of_labels.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(tmp_path)
    for found in (
        way(dataset={"name": "trap_of_labels:data"}),
        way(dataset={"name": "given:arrays"}),
        way(dataset={"name": "fashion-mnist-mini"}, partition={"kind": "trap_of_labels:deal"}),
    ):
        assert "which a report does not run" in found["why_not"]
    assert "trap_of_labels" not in sys.modules


def test_a_data_set_that_is_not_there_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path))
    monkeypatch.setattr(cache, "fetch", lambda *_: pytest.fail("it was fetched"))
    assert way(dataset={"name": "imdb"}, clients=7)["why_not"] == (
        "imdb is not on this machine; fedkeel data get imdb fetches it"
    )


@pytest.mark.parametrize("described", [{}, {"dataset": 3}, {"dataset": {"name": "none such"}}, {"dataset": None}])
def test_a_damaged_description_has_no_map(described: dict[str, Any]) -> None:
    assert way(**described)["why_not"]
