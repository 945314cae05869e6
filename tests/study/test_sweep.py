"""A grid of settings as a plan, and which of them came out best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkeel.errors import InputError
from fedkeel.study.files import StudyFile
from fedkeel.study.plan import Comparison, Measure
from fedkeel.study.results import collect
from fedkeel.study.store import Store
from fedkeel.study.sweep import ranking, sweep_plan
from tests.helpers.studies import by_hand, fill, row


def plan(*grid: str, given: StudyFile | None = None, words: tuple[str, ...] = (), **more: Any) -> Comparison:
    settings = {"seeds": [100, 101], "at": None, "command": "", **more}
    return sweep_plan(given or StudyFile(), words, grid, **settings)


def test_every_combination_is_a_variant() -> None:
    found = plan("local.lr=0.1,0.2", "local.epochs=1,3", words=("clients=5",))
    assert found.variants == [f"local.lr={lr}, local.epochs={epochs}" for lr in (0.1, 0.2) for epochs in (1, 3)]
    assert (found.seeds, found.title) == ([100, 101], "Sweep over local.lr and local.epochs")
    for case in found.cases:
        told = f"local.lr={case.experiment.local.lr}, local.epochs={case.experiment.local.epochs}"
        assert (case.variant, case.experiment.clients) == (told, 5)
    assert len({case.name for case in found.cases}) == 8


def test_the_grid_stands_above_the_file() -> None:
    given = StudyFile(base={"local": {"lr": 0.5}}, about="Mine")
    found = plan("local.lr=0.1,0.2", given=given)
    assert ([case.experiment.local.lr for case in found.cases], found.title) == ([0.1, 0.1, 0.2, 0.2], "Mine")


def test_scenes_of_a_file_are_kept() -> None:
    given = StudyFile(scenes={"calm": [], "rough": ["fleet.dropout=0.1"]})
    assert plan("local.lr=0.1,0.2", given=given).scenes == ["calm", "rough"]


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ([], "grid: there is nothing to try; give --grid KEY=VALUE,VALUE"),
        (["local.lr=0.1", "local.lr=0.2"], "grid: local.lr is given twice; give all its values at once"),
        (["local.lr=0.1,0.1"], "local.lr: a value is given twice in '0.1,0.1'; keep one"),
        (["local.nope=1,2"], "^local.nope=1: local.nope is not a setting; .*batch_size"),
        (["local.lr=0.1,-1"], "^local.lr=-1: local.lr must be greater than 0; got -1"),
        (["local.lr"], "must be KEY=VALUE,VALUE, .*; got 'local.lr'"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        plan(*grid)


def test_a_file_with_variants_is_refused() -> None:
    with pytest.raises(
        InputError, match="sweep: the file has variants of its own; give an experiment, or use fedkeel compare"
    ):
        plan("local.lr=1", given=StudyFile(variants={"a": []}))


def test_settings_are_ranked_by_their_mean_and_failed_ones_left_out(tmp_path: Path) -> None:
    scores = {"a": [0.2, 0.3], "b": [0.9, 0.1], "c": [0.3, 0.4], "lucky": [0.99]}
    made = by_hand([("", name, seed) for name in (*scores, "wild") for seed in (0, 1)], Measure())
    fill(made, tmp_path, {(name, n): [row(1, each)] for name, found in scores.items() for n, each in enumerate(found)})
    Store(tmp_path).fail("lucky-1", "DivergenceError", "it diverged")
    Store(tmp_path).fail("wild-0", "DivergenceError", "it diverged")
    assert [line.variant for line in ranking(collect(made, tmp_path))] == ["b", "c", "a"]
