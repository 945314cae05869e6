"""Run folders that somebody names, as something to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkeel.errors import InputError
from fedkeel.study.adhoc import gather
from fedkeel.study.kept import PLAN
from fedkeel.study.plan import Measure
from fedkeel.study.table import lines
from tests.helpers.studies import by_hand, fill, row, write_run

ADAM = {"name": "fedadam", "client": None, "server": None}


def written(place: Path, *experiments: dict[str, Any]) -> list[Path]:
    return [write_run(place / f"r{n}", [row(1, 0.5), row(2, 0.6)], each) for n, each in enumerate(experiments)]


def told(place: Path, *experiments: dict[str, Any]) -> list[tuple[str, int]]:
    found = gather(written(place, *experiments))
    return [(each.variant, each.seed) for each in found.outcomes]


def test_runs_that_differ_in_their_seed_alone_are_one_variant(tmp_path: Path) -> None:
    different = ({"seed": n, "executor": {"kind": "serial", "stack": n}, "threads": n + 1} for n in range(3))
    assert told(tmp_path, *different) == [("fedavg", 0), ("fedavg", 1), ("fedavg", 2)]


def test_variants_are_called_by_what_they_have_differently(tmp_path: Path) -> None:
    rates = ({"local": {"lr": lr, "epochs": 1}, "seed": seed} for lr in (0.1, 0.2) for seed in (0, 1))
    assert told(tmp_path / "a", *rates) == [
        *(("fedavg, local.lr=0.1", 0), ("fedavg, local.lr=0.1", 1)),
        *(("fedavg, local.lr=0.2", 0), ("fedavg, local.lr=0.2", 1)),
    ]
    methods = ({"algorithm": {"name": "fedprox", "mu": 0.1}}, {"algorithm": {"name": "fedavg"}})
    assert told(tmp_path / "b", *methods) == [("fedprox", 0), ("fedavg", 0)]


def test_settings_of_the_server_tell_variants_apart(tmp_path: Path) -> None:
    """Otherwise runs with different ones would be taken for seeds of one variant."""
    rates = ({"algorithm": {**ADAM, "server_lr": lr}, "seed": seed} for seed, lr in enumerate((0.1, 0.01)))
    assert told(tmp_path, *rates) == [("fedadam, server_lr=0.1", 0), ("fedadam, server_lr=0.01", 1)]


def test_rules_of_other_methods_tell_variants_apart(tmp_path: Path) -> None:
    found = told(tmp_path, {"algorithm": ADAM}, {"algorithm": {**ADAM, "client": "fedsam"}, "seed": 1})
    assert found == [("fedadam", 0), ("fedadam, client=fedsam", 1)]


def test_a_name_is_that_of_a_variant_only_if_its_runs_have_the_same_settings(tmp_path: Path) -> None:
    named = ({"name": "mine", "seed": seed, "clients": 5} for seed in (0, 1))
    assert told(tmp_path / "a", *named, {"name": "other", "clients": 6}) == [("mine", 0), ("mine", 1), ("other", 0)]
    both = ({"name": "mine", "seed": 0, "clients": 5}, {"name": "mine", "seed": 1, "clients": 6})
    assert told(tmp_path / "b", *both) == [("fedavg, clients=5", 0), ("fedavg, clients=6", 1)]


def test_the_same_run_a_second_time_counts_as_another(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / name / "same", [row(1, score)]) for name, score in (("a", 0.1), ("b", 0.2), ("c", 0.3))
    ]
    found = gather(paths)
    assert [each.variant for each in found.outcomes] == ["fedavg", "fedavg (same)", "fedavg (same) (same)"]
    assert [line.value and line.value.mean for line in lines(found)] == [0.1, 0.2, 0.3]


def test_runs_are_compared_at_equal_time_if_one_is_asynchronous(tmp_path: Path) -> None:
    assert gather(written(tmp_path / "a", {}, {"algorithm": {"name": "fedprox"}})).measure.at == "rounds"
    paths = written(tmp_path / "b", {}, {"algorithm": {"name": "fedasmu"}})
    assert gather(paths).measure == Measure("time", reference="fedavg")
    assert gather(paths, at="bytes").limits == {"": 14.0}
    gone = written(tmp_path / "c", {"algorithm": {"name": "gone:Method"}}, {"algorithm": {"name": "fedbuff"}})
    assert gather(gone).measure.at == "time"  # code that is no longer there does not matter


def test_the_target_is_that_of_all_runs_or_the_one_asked_for(tmp_path: Path) -> None:
    same = written(tmp_path / "a", {"target_accuracy": 0.6}, {"target_accuracy": 0.6, "seed": 1})
    assert gather(same).measure.target == 0.6
    assert [each.rounds_to_target for each in gather(same).outcomes] == [2, 2]
    assert gather(same, target=0.5).measure.target == 0.5
    assert gather(written(tmp_path / "b", {"target_accuracy": 0.6}, {"target_accuracy": 0.7})).measure.target is None


def test_a_comparison_is_read_as_it_was_planned_or_seen_in_another_way(tmp_path: Path) -> None:
    plan = by_hand([("", "a", 0), ("", "b", 0)], Measure("rounds", until=1, target=0.5, reference="a"))
    fill(plan, tmp_path, {(name, 0): [row(n, n / 4) for n in (1, 2, 3)] for name in "ab"})
    found = gather([tmp_path])
    assert (found.measure, found.limits, found.title) == (plan.measure, {"": 1.0}, "by hand")
    other = gather([tmp_path], "uploads", 0.75)
    assert other.measure == Measure("uploads", until=None, target=0.75, reference="a")
    assert other.limits == {"": 9.0}  # one round is not one upload
    assert other.outcomes[0].rounds_to_target == 3
    assert gather([tmp_path], "rounds").limits == {"": 1.0}


def planned(place: Path, cells: dict[tuple[str, int], float], measure: Measure | None = None) -> Path:
    plan = by_hand([("", variant, seed) for variant, seed in cells], measure)
    fill(plan, place, {cell: [row(1, score), row(2, score)] for cell, score in cells.items()})
    return place


def test_comparisons_and_runs_are_put_together(tmp_path: Path) -> None:
    """Variants of one scene, unless two of them are the same."""
    timed = Measure("time", target=0.4, reference="a")
    first = planned(tmp_path / "first", {("a", 0): 0.1, ("a", 1): 0.2}, timed)
    second = planned(tmp_path / "second", {("b", 0): 0.3, ("b", 1): 0.4}, Measure(target=0.4))
    third = planned(tmp_path / "third", {("a", 1): 0.9})
    (run,) = written(tmp_path, {"seed": 1})
    found = gather([first, second, run])
    assert (found.measure, found.scenes) == (Measure("time", reference="a"), [""])
    assert [(each.variant, each.seed) for each in found.outcomes] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("fedavg", 1),
    ]  # fmt: skip
    assert [line.difference and line.difference.count for line in lines(found)] == [None, 2, 1]
    assert found.command == f"fedkeel report {first} {second} {run}"
    apart = gather([first, third])
    assert apart.scenes == ["first", "third"]
    assert [line.value and line.value.mean for line in lines(apart)] == pytest.approx([0.15, 0.9])


def test_runs_on_different_data_are_not_compared(tmp_path: Path) -> None:
    data = [
        {"dataset": {"name": name, "train_limit": n}, "clients": n} for n, name in enumerate(("mnist", "mine:load"))
    ]
    found = gather(written(tmp_path, *data, {**data[0], "algorithm": {"name": "fedprox"}}))
    assert [(each.scene, each.variant) for each in found.outcomes] == [
        ("mnist", "fedavg"), ("mnist", "fedprox"), ("mine:load", "fedavg"),
    ]  # fmt: skip


def test_runs_have_a_reference(tmp_path: Path) -> None:
    prox = {"algorithm": {"name": "fedprox"}}
    paths = written(tmp_path, prox, {**prox, "seed": 1}, {}, {"seed": 1})
    assert [line.sentence for line in lines(gather(paths))] == ["equal to fedavg in 2 of 2 seeds", "the reference"]
    assert gather(paths, reference="fedprox").measure.reference == "fedprox"
    with pytest.raises(InputError, match="reference: mine is not a variant; choose one of fedprox, fedavg"):
        gather(paths, reference="mine")
    assert gather(paths[:2]).measure.reference is None


def test_no_code_of_the_users_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_of_plans.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    place = planned(tmp_path / "a", {("a", 0): 0.1})
    (place / PLAN).write_text((place / PLAN).read_text().replace('"fedavg"', '"trap_of_plans:mine"'))
    assert "trap_of_plans:mine" in (place / PLAN).read_text()
    assert lines(gather([place]))[0].finished == 1


def test_one_run_is_repeated_by_a_command_of_its_own(tmp_path: Path) -> None:
    (path,) = written(tmp_path / "with space", {})
    found = gather([path])
    assert (found.title, found.command) == ("fedavg", f"fedkeel run '{path}/experiment.yaml'")
    two = gather(written(tmp_path / "two", {}, {"seed": 1}))
    assert (two.title, two.command) == ("2 runs", f"fedkeel report {tmp_path}/two/r0 {tmp_path}/two/r1")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (run,) = written(tmp_path / "a", {})
    (tmp_path / "empty").mkdir()
    (tmp_path / "planned").mkdir()
    (tmp_path / "planned" / PLAN).write_text("{")
    for paths, sentence in (
        ([tmp_path / "none"], "none: there is no such folder; name a run folder or a comparison"),
        (
            [run, tmp_path / "empty"],
            "empty holds neither a run nor a comparison; name a folder made by fedkeel run",
        ),
        ([run, tmp_path / "planned"], "comparison.json is missing or damaged"),
        ([tmp_path / "planned"], "comparison.json is missing or damaged"),
        ([tmp_path / "a"], f"a holds neither a run nor .*; inside it are some: {tmp_path}/a/\\*"),
    ):
        with pytest.raises(InputError, match=sentence):
            gather(paths)


@pytest.mark.parametrize("broken", [{"algorithm": None}, {"seed": "x"}, {"seed": [1]}, {"algorithm": {"id": 1}}])
def test_a_damaged_description_is_told(broken: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"experiment.yaml is damaged"):
        gather(written(tmp_path, broken, {}))


def test_comparisons_of_one_variant_each_are_compared(tmp_path: Path) -> None:
    paths = [planned(tmp_path / name, {(name, 0): 0.1, (name, 1): 0.2}) for name in ("prox", "FedAvg")]
    assert gather(paths).measure.reference == "FedAvg"
    assert gather(paths[:1]).measure.reference is None
