"""Plans: what runs they have, how these are called, and what is refused."""

from __future__ import annotations

import re

import pytest

from fedkeel.config.experiment import Experiment
from fedkeel.errors import InputError
from fedkeel.study.plan import Case, Comparison, Measure, case_name, cross, default_at
from tests.helpers.studies import small

BASE = {"model": "linear", "clients": 4}


def case(name: str, variant: str = "a", seed: int = 0) -> Case:
    return Case(name, "", variant, seed, Experiment())


def test_every_variant_runs_in_every_scene_with_every_seed() -> None:
    cases = cross(BASE, {"calm": [], "rough": ["fleet.dropout=0.1"]}, {"a": [], "b": ["local.lr=0.5"]}, [3, 4])
    assert [(each.scene, each.variant, each.seed) for each in cases] == [
        (scene, variant, seed) for scene in ("calm", "rough") for variant in ("a", "b") for seed in (3, 4)
    ]
    for each in cases:
        assert each.experiment.seed == each.seed
        assert each.experiment.local.lr == (0.5 if each.variant == "b" else 0.05)
        assert each.experiment.fleet.dropout == (0.1 if each.scene == "rough" else 0.0)
        assert each.experiment.clients == 4


def test_a_variant_stands_above_its_scene() -> None:
    cases = cross(BASE, {"s": ["local.lr=0.1", "rounds=7"]}, {"v": ["local.lr=0.2"]}, [0])
    assert (cases[0].experiment.local.lr, cases[0].experiment.rounds) == (0.2, 7)


def test_some_variants_run_with_fewer_seeds() -> None:
    cases = cross(BASE, {"": []}, {"a": [], "b": []}, [0, 1, 2], {"b": [1]})
    assert [(each.variant, each.seed) for each in cases] == [("a", 0), ("a", 1), ("a", 2), ("b", 1)]


def test_names_are_the_same_whenever_a_plan_is_made() -> None:
    names = [each.name for each in small(algorithms=["fedavg", "fedprox"], seeds=[0, 12]).cases]
    assert names == ["fedavg-seed0", "fedavg-seed12", "fedprox-seed0", "fedprox-seed12"]
    # Written down, because folders of earlier comparisons are found by them.
    assert case_name("fleet.rho=0.2", "local.lr=0.1, local.epochs=5", 1) == (
        "fleet.rho=0.2-local.lr=0.1-local.epochs=5-seed1"
    )
    assert case_name("", "a/b", 0) == "a-b-7c3f65-seed0"


@pytest.mark.parametrize(
    "odd", ["../../etc", "a/b", "a\\b", ".hidden", "naïve", "x" * 300, "a\nb", "~", "...", "-rf", "con:", "a*", "'\"&|"]
)
def test_every_name_is_that_of_a_folder_inside(odd: str) -> None:
    name = case_name("", odd, 0)
    assert re.fullmatch(r"[A-Za-z0-9%+=_][A-Za-z0-9.%+=_-]*-seed0", name)
    assert len(name) <= 100
    assert name != case_name("", f"{odd}!", 0)  # what was left out is told apart


def test_two_runs_with_one_name_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"two runs are called a-b-seed0 \(variant a b, seed 0\); give one of them another name$"
    ):
        Comparison("t", cross(BASE, {"": []}, {"a b": [], "a-b": ["local.lr=0.1"]}, [0]), Measure())
    with pytest.raises(InputError, match="two runs are called X"):  # one folder where names have no case
        Comparison("t", (case("X"), case("x", "b")), Measure())


def test_plans_have_runs_but_not_too_many() -> None:
    with pytest.raises(InputError, match="it has no runs; give at least one"):
        Comparison("t", (), Measure())
    one = case("x")
    many = tuple(Case(f"x{n}", "", "x", n, one.experiment) for n in range(10_001))
    with pytest.raises(InputError, match="must have at most 10,000 runs; got 10,001"):
        Comparison("t", many, Measure())
    assert len(Comparison("t", many[:-1], Measure()).cases) == 10_000


def test_the_reference_is_one_of_the_variants() -> None:
    with pytest.raises(InputError, match=r"reference: c is not a variant; choose one of a, b$"):
        Comparison("t", (case("x"), case("y", "b")), Measure(reference="c"))


@pytest.mark.parametrize("target", [float("nan"), float("inf")])
def test_a_target_is_a_number(target: float) -> None:
    with pytest.raises(InputError, match="target must be a finite number; got "):
        Measure(target=target)


def test_errors_say_which_variant_in_which_scene() -> None:
    with pytest.raises(InputError, match=r"v in s: local.nope is not a setting; .*batch_size"):
        cross(BASE, {"s": []}, {"v": ["local.nope=1"]}, [0])
    with pytest.raises(InputError, match=r"^v: a setting must be key=value, .*; got 'junk'"):
        cross(BASE, {"": []}, {"v": ["junk"]}, [0])


def test_a_seed_among_the_settings_is_refused() -> None:
    with pytest.raises(InputError, match="seed=3 cannot be set here; use --seeds, or seeds in the file"):
        cross(BASE, {"": ["seed=3"]}, {"v": []}, [0])


def test_virtual_time_is_the_scale_as_soon_as_one_method_is_asynchronous() -> None:
    barrier = [Experiment.build(BASE, [f"algorithm={name}"]) for name in ("fedavg", "scaffold")]
    assert default_at(barrier) == "rounds"
    for name in ("fedasmu", "fedssmu", "fedbuff", "fedasync"):
        assert default_at([*barrier, Experiment.build(BASE, [f"algorithm={name}"])]) == "time"


def test_a_plan_lists_scenes_variants_and_seeds_in_order() -> None:
    plan = Comparison("t", cross(BASE, {"z": [], "y": []}, {"b": [], "a": []}, [5, 2]), Measure())
    assert (plan.scenes, plan.variants, plan.seeds) == (["z", "y"], ["b", "a"], [2, 5])
