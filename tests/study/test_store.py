"""The folder of a comparison: whose it is, what is kept in it, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedkeel.config.experiment import Experiment
from fedkeel.errors import InputError
from fedkeel.local.settings import ExecutorSettings
from fedkeel.study.kept import PLAN
from fedkeel.study.plan import Comparison, Measure
from fedkeel.study.store import EXECUTORS, FAILED, Store, is_comparison
from fedkeel.study.tasks import Estimate
from tests.helpers.studies import OPEN, comparison_of, row, small, variants, write_run

SETTLED = ExecutorSettings(kind="vectorised", stack=4, native=False, channels_last=False)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_plan_is_read_back_as_it_was(tmp_path: Path) -> None:
    plan = small("partition=dirichlet", "fleet.speed_ratio=5", algorithms=["fedavg", "fedasmu"])
    assert not is_comparison(tmp_path)
    Store(tmp_path).keep(plan)
    assert is_comparison(tmp_path)
    again = Store(tmp_path).plan()
    assert (again.title, again.measure, again.command) == (plan.title, plan.measure, plan.command)
    assert [Experiment.build(case.experiment) for case in again.cases] == [case.experiment for case in plan.cases]
    assert [(c.name, c.scene, c.variant, c.seed) for c in again.cases] == [
        (c.name, c.scene, c.variant, c.seed) for c in plan.cases
    ]


def test_a_comparison_may_grow_but_not_change(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), small(algorithms=["fedavg"], seeds=[0])
    store.keep(plan)
    store.keep(small(algorithms=["fedavg", "fedprox"], seeds=[0, 1]))
    assert len(store.plan().cases) == 4
    before = content(tmp_path)
    with pytest.raises(InputError, match=r"belongs to another comparison \(its run fedavg-seed1 is not part of this"):
        store.keep(plan)
    other = small("local.lr=0.5", algorithms=["fedavg", "fedprox"], seeds=[0, 1])
    with pytest.raises(
        InputError,
        match=r"out: .* belongs to another .*fedavg-seed0 has local.lr=0.05, not 0.5\); choose another fo",
    ):
        store.keep(other)
    assert content(tmp_path) == before


def test_the_same_runs_may_be_compared_in_another_way(tmp_path: Path) -> None:
    plan = small()
    Store(tmp_path).keep(plan)
    Store(tmp_path).keep(Comparison("Other", plan.cases, Measure(at="time", target=0.5)))
    assert Store(tmp_path).plan().measure == Measure(at="time", target=0.5)


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="holds something else; choose a new or empty folder, or that of this comp"):
        Store(tmp_path).keep(small())
    assert content(tmp_path) == {"thesis.tex": b"precious"}
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"out must be a folder; got the file .*file$"):
        Store(tmp_path / "file").keep(small())


def test_a_folder_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(InputError, match="out: /proc/none cannot be written"), Store(Path("/proc/none")).alone():
        pass


def test_an_empty_folder_is_not_left(tmp_path: Path) -> None:
    with Store(tmp_path / "a").alone():
        pass
    assert not (tmp_path / "a").exists()
    with Store(tmp_path).alone():
        pass
    assert tmp_path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot be written"):
            Store(tmp_path / "inside").keep(small())
    finally:
        tmp_path.chmod(0o700)


def test_a_kill_while_the_plan_is_written_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / f"{PLAN}.partial").write_text('{"schema')
    Store(tmp_path).keep(small())
    assert len(Store(tmp_path).plan().cases) == 2


def damaged(change: Any) -> str:
    told = {"schema": 1, "title": "t", "command": "", "measure": {}, "cases": []}
    case = {"name": "a", "scene": "", "variant": "a", "seed": 0, "experiment": {}}
    change(told, case)
    return json.dumps({**told, "cases": told["cases"] or [case]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"text"',
        "{}",
        "\x00",
        "[" * 100_000,
        damaged(lambda told, _: told.pop("title")),
        damaged(lambda told, _: told.update(measure=3)),
        damaged(lambda told, _: told.update(measure={"when": 3})),
        damaged(lambda told, _: told.update(schema="new")),
        damaged(lambda told, _: told.update(cases={"a": 1})),
        damaged(lambda _, case: case.pop("seed")),
        damaged(lambda _, case: case.update(name=None)),
        damaged(lambda _, case: case.update(experiment=[1])),
        damaged(lambda told, _: told.update(measure={"at": "steps"})),
        damaged(lambda told, _: told.update(measure={"until": "x"})),
        damaged(lambda told, _: told.update(measure={"last": 0})),
        damaged(lambda _, case: case.update(seed="a")),
        *(damaged(lambda _, case, name=name: case.update(name=name)) for name in ("../a", "a/b", "..", ".", "")),
    ],
)
def test_a_damaged_plan_is_told_and_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / PLAN).write_text(text)
    with pytest.raises(
        InputError, match=r"comparison.json is missing or damaged \(.*; name a folder made by fedkeel compare"
    ):
        Store(tmp_path).plan()
    with pytest.raises(InputError, match="damaged"):
        Store(tmp_path).keep(small())
    assert content(tmp_path) == {PLAN: text.encode()}


def test_a_plan_of_a_later_version_is_told(tmp_path: Path) -> None:
    Store(tmp_path).keep(small())
    told = json.loads((tmp_path / PLAN).read_text())
    (tmp_path / PLAN).write_text(json.dumps({**told, "schema": 99, "fedkeel": "7.0"}))
    with pytest.raises(InputError, match=r"fedkeel 7.0 wrote it, .*; install that version"):
        Store(tmp_path).plan()


def test_why_a_run_failed_is_kept_until_it_is_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert (store.failure("a"), store.final("a")) == (None, False)
    store.fail("a", "WorkerDied", "its process was killed")
    store.fail("b", "DivergenceError", "training diverged")
    assert (store.failure("a"), store.final("a")) == ("its process was killed", False)
    assert (store.failure("b"), store.final("b")) == ("training diverged", True)
    store.forget("a")
    store.forget("a")
    assert (store.failure("a"), store.failure("b")) == (None, "training diverged")


def test_a_complete_run_has_not_failed_even_if_its_process_died_just_then(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store.folder("a"), [])
    store.fail("a", "WorkerDied", "its process was killed")
    assert store.failure("a") is None


@pytest.mark.parametrize("text", ["", "[]", "3", "{}"])
def test_a_damaged_note_of_a_failure_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / FAILED).mkdir()
    (tmp_path / FAILED / "a.json").write_text(text)
    assert (Store(tmp_path).failure("a"), Store(tmp_path).final("a")) == (None, False)


def test_settled_executors_are_read_back(tmp_path: Path) -> None:
    found = {"k": Estimate(SETTLED, 1.5, 1000), "l": Estimate(ExecutorSettings(kind="serial"), None, 7)}
    assert Store(tmp_path).estimates() == {}
    Store(tmp_path).keep_estimates(found)
    assert Store(tmp_path).estimates() == found


@pytest.mark.parametrize("text", ["", "[]", '{"k": {"executor": {"kind": "quantum"}, "seconds": 1, "bytes": 1}}'])
def test_executors_that_cannot_be_read_are_settled_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / EXECUTORS).write_text(text)
    assert Store(tmp_path).estimates() == {}


def test_only_one_command_at_a_time_runs_something_in_a_folder(tmp_path: Path) -> None:
    with (
        Store(tmp_path).alone(),
        pytest.raises(InputError, match="is in use; choose another folder, or wait"),
        Store(tmp_path).alone(),
    ):
        pass
    with Store(tmp_path).alone():
        assert list(tmp_path.iterdir()) == []


def test_variants_told_by_a_file_are_kept_like_methods(tmp_path: Path) -> None:
    Store(tmp_path).keep(variants({"a, b": ["local.lr=0.1"], "c/d": ["local.lr=0.2"]}))
    assert [case.variant for case in Store(tmp_path).plan().cases] == ["a, b", "c/d"]


def test_runs_of_changed_code_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "drawing.py"
    code.write_text("def draw(sizes, count, free, rng):\n    return list(range(count))\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan = comparison_of([*OPEN, "sampling=drawing:draw"], ["fedavg"], [0])
    store = Store(tmp_path / "out")
    store.keep(plan)
    code.write_text(code.read_text() + "# another version\n")
    store.keep(plan)  # nothing was run yet
    write_run(store.folder("fedavg-seed0"), [row(1, 0.5)])
    store.keep(plan)
    code.write_text("def draw(sizes, count, free, rng):\n    return list(range(1, count + 1))\n")
    with pytest.raises(InputError, match="holds runs of another version of drawing; choose another folder"):
        store.keep(plan)
