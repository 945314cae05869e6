"""Which runs belong together, and what they are called."""

from pathlib import Path
from typing import Any

from fedkeel.record.runs import RunRecord
from fedkeel.report.groups import LONGEST, groups, titles


def told(*experiments: dict[str, Any], separate: bool = False) -> dict[str, int]:
    """How many runs each group has, by its name; settings are those of a usual run and these."""
    usual = {"algorithm": {"name": "fedavg"}, "partition": {"kind": "iid"}, "seed": 0, "name": None}
    runs = [RunRecord(Path(f"/runs/r{n}"), {**usual, **each}, []) for n, each in enumerate(experiments)]
    return {group.name: len(group.runs) for group in groups(runs, separate)}


def test_runs_that_differ_in_their_seed_alone_are_a_group() -> None:
    three = [{"seed": n, "executor": {"kind": "serial", "stack": n}, "threads": n} for n in range(3)]
    assert told(*three) == {"fedavg": 3}
    assert told(*three, separate=True) == {"seed 0": 1, "seed 1": 1, "seed 2": 1}


def test_groups_are_named_by_what_differs_and_by_nothing_else() -> None:
    methods = [{"algorithm": {"name": name}, "seed": seed} for name in ("fedavg", "fedprox") for seed in (0, 1)]
    assert told(*methods) == {"fedavg": 2, "fedprox": 2}
    rates = [{"local": {"lr": lr, "epochs": 2}} for lr in (0.1, 0.01)]
    assert told(*rates) == {"lr 0.1": 1, "lr 0.01": 1}
    both = [{"algorithm": {"name": n}, "local": {"lr": lr}} for n, lr in (("fedavg", 0.1), ("fedprox", 0.2))]
    assert told(*both) == {"fedavg, lr 0.1": 1, "fedprox, lr 0.2": 1}
    split = [{"partition": {"kind": "iid"}}, {"partition": {"kind": "dirichlet", "alpha": 0.1}}]
    assert told(*split) == {"iid": 1, "dirichlet": 1}


def test_settings_with_the_same_last_word_keep_their_section() -> None:
    runs = [{"local": {"lr": lr}, "finetune": {"lr": 2 * lr}} for lr in (1, 2)]
    assert told(*runs) == {"local.lr 1, finetune.lr 2": 1, "local.lr 2, finetune.lr 4": 1}


def test_a_name_that_the_user_gave_to_one_group_is_its_name() -> None:
    assert told({"name": "mine"}, {"name": "mine", "seed": 1}, {"clients": 7}) == {"mine": 2, "r2": 1}
    twice = told({"name": "mine", "clients": 5}, {"name": "mine", "clients": 6})
    assert twice == {"clients 5": 1, "clients 6": 1}
    by_seed = told({"name": "s0", "clients": 5}, {"name": "s1", "seed": 1, "clients": 5}, {"clients": 6})
    assert by_seed == {"clients 5": 2, "clients 6": 1}


def test_one_run_has_the_name_of_its_folder_and_counts_once() -> None:
    assert told({}) == {"r0": 1}
    run = RunRecord(Path("/runs/mine"), {"algorithm": {"name": "fedavg"}}, [])
    (group,) = groups([run, RunRecord(Path("/runs/../runs/mine"), run.experiment, [])])
    assert (group.name, len(group.runs)) == ("mine", 1)


def test_groups_with_equal_words_have_their_folders_too() -> None:
    assert told({"local": {"lr": 1}}, {"local": {"lr": 1}, "clients": 5}, {"local": {"lr": 2}}) == {
        "lr 1 (r0)": 1,
        "lr 1 (r1)": 1,
        "lr 2": 1,
    }


def test_runs_are_called_seeds_where_all_seeds_differ() -> None:
    def unit(*seeds: int) -> str:
        runs = [RunRecord(Path(f"/r{n}"), {"algorithm": {"name": "a"}, "seed": s}, []) for n, s in enumerate(seeds)]
        return groups(runs)[0].unit

    assert (unit(0, 1, 2), unit(0, 0)) == ("seeds", "runs")


def test_panels_are_called_by_what_differs_where_labels_are_the_same() -> None:
    usual = {"algorithm": {"name": "fedavg"}, "partition": {"kind": "iid"}, "seed": 0}
    slow, fast = (RunRecord(Path(f"/{lr}"), {**usual, "local": {"lr": lr}}, []) for lr in (1, 2))
    assert titles([slow]) == ["fedavg, iid, seed 0"]
    assert titles([slow, fast, slow]) == ["lr 1", "lr 2", "lr 1"]


def test_names_that_are_cut_short_stay_distinct() -> None:
    names = [{"local": {f"setting{n}": f"value{lr}" for n in range(20)}} for lr in (1, 2)]
    long = [{"local": {**each["local"], "setting0": "same"}} for each in names]
    found = [*told(*long)]
    assert len(set(found)) == 2
    assert all(len(name) <= LONGEST + 5 for name in found)
