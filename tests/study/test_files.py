"""Comparisons as files and commands describe them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedkeel.config.experiment import Experiment
from fedkeel.errors import InputError
from fedkeel.study.files import StudyFile, comparison, values

TWO = {"fast": ["local.lr=0.5"], "slow": ["local.lr=0.005"]}


def file(place: Path, **told: Any) -> Path:
    path = place / "study.yaml"
    path.write_text(yaml.safe_dump(told, sort_keys=False))
    return path


def read(place: Path, **told: Any) -> StudyFile:
    return StudyFile.read(file(place, **told))


def test_a_file_names_scenes_and_variants_on_a_base(tmp_path: Path) -> None:
    scenes = {"calm": [], "rough": ["fleet.dropout=0.2"]}
    given = read(tmp_path, about="A title", base={"clients": 7, "model": "linear"}, scenes=scenes, variants=TWO)
    plan = comparison(given, ["rounds=4"], command="fedkeel compare study.yaml")
    assert (plan.title, plan.command) == ("A title", "fedkeel compare study.yaml")
    assert (plan.scenes, plan.variants, plan.seeds) == (["calm", "rough"], ["fast", "slow"], [0, 1, 2])
    for case in plan.cases:
        each = case.experiment
        assert (each.clients, each.rounds, each.model.name, each.seed) == (7, 4, "linear", case.seed)
        assert each.local.lr == (0.5 if case.variant == "fast" else 0.005)
        assert each.fleet.dropout == (0.2 if case.scene == "rough" else 0.0)


def test_the_base_may_be_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "base.yaml").write_text("{clients: 9}")
    plan = comparison(read(tmp_path, base="inside/base.yaml", variants=TWO))
    assert {case.experiment.clients for case in plan.cases} == {9}
    with pytest.raises(
        InputError, match=r"experiment file .*nothing.yaml cannot be read .*; give the path of a YAML file"
    ):
        read(tmp_path, base="nothing.yaml", variants=TWO)


def test_what_show_prints_is_a_base_and_algorithms_replace_its_algorithm(tmp_path: Path) -> None:
    shown = Experiment.build({}, ["algorithm=fedadam", "algorithm.server_lr=0.5", "model=linear", "rounds=4"])
    (tmp_path / "shown.yaml").write_text(shown.to_yaml())
    plan = comparison(StudyFile.read(tmp_path / "shown.yaml"), algorithms=["fedprox", "fedadam"], seeds=[6])
    assert [case.experiment.algorithm.name for case in plan.cases] == ["fedprox", "fedadam"]
    assert plan.cases[1].experiment == Experiment.build({}, ["algorithm=fedadam", "model=linear", "rounds=4", "seed=6"])
    alone = comparison(StudyFile.read(tmp_path / "shown.yaml"), seeds=[6])
    assert alone.variants == ["fedadam"]
    assert alone.cases[0].experiment == shown.replace(seed=6)


def test_without_a_file_methods_are_compared_on_the_default_experiment() -> None:
    plan = comparison(StudyFile.read(None), ["clients=5"], ["fedavg", "fedagg"])
    assert plan.variants == ["fedavg", "fedagg"]
    assert plan.cases[3].experiment == Experiment.build({}, ["clients=5", "algorithm=fedagg"])
    assert plan.title == "fedavg and fedagg on fashion-mnist-mini with mlp-400"


def test_seeds_of_the_command_stand_above_those_of_the_file(tmp_path: Path) -> None:
    given = read(tmp_path, variants=TWO, seeds=[4, 5, 6], fewer_seeds={"slow": [5]})
    found = [(case.variant, case.seed) for case in comparison(given).cases]
    assert found == [("fast", 4), ("fast", 5), ("fast", 6), ("slow", 5)]
    found = [(case.variant, case.seed) for case in comparison(given, seeds=[1, 2]).cases]
    assert found == [("fast", 1), ("fast", 2), ("slow", 1), ("slow", 2)]


def test_a_product_of_values_makes_scenes(tmp_path: Path) -> None:
    given = read(tmp_path, scenes={"calm": ["fleet.dropout=0.1"], "rough": []}, variants=TWO)
    plan = comparison(given, seeds=[0], vary=["clients=5,6", "partition={kind: dirichlet, alpha: 0.1},iid"])
    assert plan.scenes == [
        f"{scene}, clients={clients}, partition={kind}"
        for scene in ("calm", "rough")
        for clients in (5, 6)
        for kind in ("{kind: dirichlet, alpha: 0.1}", "iid")
    ]
    for case in plan.cases:
        words = case.scene.split(", ", 2)
        assert f"clients={case.experiment.clients}" == words[1]
        assert case.experiment.partition.kind in words[2]
        assert case.experiment.fleet.dropout == (0.1 if words[0] == "calm" else 0)


def test_settings_of_the_command_stand_above_those_of_variants() -> None:
    plan = comparison(StudyFile(), ["algorithm.weighting=uniform"], ["fedavg"], [0], ["algorithm.server_lr=0.5,1"])
    told = [case.experiment.algorithm.model_dump() for case in plan.cases]
    assert [(each["weighting"], each["server_lr"]) for each in told] == [("uniform", 0.5), ("uniform", 1.0)]


CLASHING = StudyFile(
    scenes={"few": ["clients=5"], "uneven": ["partition={kind: dirichlet, alpha: 0.3}"]},
    variants={"mild": ["local.lr=0.1", "client=fedsam"], "wild": ["local={lr: 1, epochs: 2}"]},
)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"overrides": ["clients=9"]}, "clients is also set by the scene few; set it for all runs only if no scene"),
        ({"vary": ["clients=6,7"]}, "clients is also set by the scene few; "),
        ({"overrides": ["partition.alpha=1"]}, "partition.alpha is also set by the scene uneven; "),
        ({"overrides": ["partition=iid"]}, "partition is also set by the scene uneven; "),
        ({"overrides": ["local={lr: 2}"]}, "local is also set by the variant mild; "),
        ({"overrides": ["local={momentum: 0.9}"]}, "local is also set by the variant wild; "),
        ({"overrides": ["local.epochs=3"]}, "local.epochs is also set by the variant wild; "),
        ({"overrides": ["algorithm.client=fedavg"]}, "algorithm.client is also set by the variant mild; "),
        ({"overrides": ["rounds=3"], "vary": ["rounds=3,4"]}, "rounds is set twice; give it one value, or"),
    ],
)
def test_a_setting_that_a_scene_or_a_variant_has_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{sentence}"):
        comparison(CLASHING, seeds=[0], **given)


def test_what_a_section_leaves_open_may_be_set() -> None:
    plan = comparison(CLASHING, ["local.batch_size=7"], seeds=[0], vary=["local.momentum=0,0.9"], only=["wild"])
    told = [case.experiment.local for case in plan.cases]
    assert {(each.batch_size, each.lr, each.epochs) for each in told} == {(7, 1, 2)}
    assert [each.momentum for each in told] == [0, 0.9, 0, 0.9]


@pytest.mark.parametrize("key", ["varients", "scene", "Variants"])
def test_a_misspelt_key_of_a_comparison_is_told(key: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({key: {"a": []}}))
    with pytest.raises(InputError, match=rf"{key} is not a setting; did you mean (variants|scenes)"):
        StudyFile.read(tmp_path / "study.yaml")


def test_an_experiment_with_a_misspelt_key_is_no_comparison(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text("{rounds: 3, last: 2}")
    with pytest.raises(InputError, match="last is not a setting"):
        comparison(StudyFile.read(tmp_path / "exp.yaml"), algorithms=["fedavg"])


def test_a_section_of_a_variant_stands_above_settings_of_a_scene() -> None:
    scene = {"s": ["local.lr=0.3"]}
    (case,) = comparison(StudyFile(scenes=scene, variants={"v": ["local={lr: 0.05}"]}), seeds=[0]).cases
    assert case.experiment.local.lr == 0.05
    for variant in (["local={epochs: 2}"], ["local={}"]):
        with pytest.raises(InputError, match=r"v in s: local would undo local.lr=0.3, .*; set local.lr beside"):
            comparison(StudyFile(scenes=scene, variants={"v": variant}), seeds=[0])
    (case,) = comparison(
        StudyFile(scenes=scene, variants={"v": ["local={epochs: 2}", "local.lr=0.3"]}), seeds=[0]
    ).cases
    assert (case.experiment.local.lr, case.experiment.local.epochs) == (0.3, 2)


def test_a_variant_changes_a_section_that_the_command_names() -> None:
    given = StudyFile(variants={name: [f"algorithm.alpha={name}"] for name in ("0.1", "0.2")})
    plan = comparison(given, ["algorithm.cap=3", "algorithm=fedagg"], seeds=[0], vary=["local={epochs: 2},{epochs: 3}"])
    told = [(each.algorithm.model_dump(), each.local.epochs) for each in (case.experiment for case in plan.cases)]
    assert [(each["name"], each["cap"], each["alpha"], epochs) for each, epochs in told] == [
        ("fedagg", 3, 0.1, 2), ("fedagg", 3, 0.2, 2), ("fedagg", 3, 0.1, 3), ("fedagg", 3, 0.2, 3),
    ]  # fmt: skip


def test_words_may_come_in_any_order() -> None:
    for words in (["partition.alpha=0.05", "partition=dirichlet"], ["partition=dirichlet", "partition.alpha=0.05"]):
        for plan in (
            comparison(StudyFile(), words, seeds=[0]),
            comparison(StudyFile(variants={"v": words}), seeds=[0]),
        ):
            assert plan.cases[0].experiment.partition.model_dump()["alpha"] == 0.05


@pytest.mark.parametrize("path", sorted(Path("experiments/studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_setting_of_a_study_is_lost(path: Path) -> None:
    """Each word of a scene and of a variant is what its experiment has."""
    given = StudyFile.read(path)
    for case in comparison(given).cases:
        told = case.experiment.model_dump(mode="json")
        for word in [*given.scenes.get(case.scene, ()), *given.variants[case.variant]]:
            key, _, text = word.partition("=")
            said, found = yaml.safe_load(text), told
            for part in key.split("."):
                found = found[part]
            if isinstance(found, dict) and isinstance(said, str):
                found = found.get("name", found.get("kind"))
            if not isinstance(found, dict):
                assert found == said or float(found) == float(said), word


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("local.lr=1e-3,0.1", ("local.lr", ["0.001", "0.1"])),
        ("algorithm=fedavg, fedprox", ("algorithm", ["fedavg", "fedprox"])),
        ("x=[1, 2],[3]", ("x", ["[1, 2]", "[3]"])),
        ("x='a,b',c", ("x", ["a,b", "c"])),
        ("per_round=null,3", ("per_round", ["null", "3"])),
        ("x='1',1", ("x", ["'1'", "1"])),
    ],
)
def test_values_are_those_between_commas(word: str, found: tuple[str, list[str]]) -> None:
    assert values(word) == found


@pytest.mark.parametrize("word", ["local.lr", "local.lr=", "=1,2", ""])
def test_what_names_no_values_is_refused(word: str) -> None:
    with pytest.raises(InputError, match=r"must be KEY=VALUE,VALUE, such as local\.lr=0\.01,0\.1; got "):
        values(word)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"vary": ["local.nope=1,2"]}, "fedavg in local.nope=1: local.nope is not a setting; .*batch"),
        ({"vary": ["clients=3,3"]}, "clients: a value is given twice in '3,3'; keep one of the two"),
        (
            {"vary": ["clients=3", "clients=4"]},
            "clients is set twice; give it one value, or several with --vary alone",
        ),
        ({"algorithms": ["fedavg", "fedawg"]}, "algorithms: 'fedawg' is not known; did you mean fedavg"),
        ({"algorithms": ["fedavg", "fedavg"]}, "algorithms: fedavg is given twice; keep one of the two"),
        ({"seeds": []}, r"seeds must be different numbers, at least one; got \[\]"),
        ({"seeds": [1, 2, 1]}, r"seeds must be different numbers, at least one; got \[1, 2, 1\]"),
        ({"target": 70.0}, "target must be a value of accuracy above 0 and at most 1; got 70"),
        ({"only": ["fedavg"]}, "only: there are no variants to choose from; give --algorithms, or a file"),
        ({"reference": "fedprox"}, "reference: fedprox is not a variant; choose one of fedavg"),
        ({"overrides": ["seed=4"]}, "seed=4 cannot be set here; use --seeds"),
    ],
)
def test_what_a_command_cannot_mean_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        comparison(StudyFile(), **given)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"fewer_seeds": {"fats": [0]}}, "fewer_seeds: fats is not a variant; choose from fast, slow"),
        ({"fewer_seeds": {"fast": [9]}}, "fewer_seeds: fast would run with no seed; give it some of 0, 1, 2"),
        ({"seeds": [-1]}, "seeds.*-1"),
        ({"at": "wall"}, "at must be 'time', .*; got 'wall'"),
        ({"until": 0}, "until"),
        ({"last": 0}, "last"),
        ({"target": float("nan")}, "target"),
        ({"clients": 4}, "clients is not a setting; .*base"),
        ({"variants": ["fedavg"]}, "variants"),
    ],
)
def test_what_a_file_cannot_mean_is_refused(told: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, **{"variants": TWO, **told})


def test_some_variants_of_a_file_may_be_chosen(tmp_path: Path) -> None:
    given = read(tmp_path, variants={**TWO, "other": []}, reference="slow")
    assert comparison(given, only=["other", "fast"]).variants == ["fast", "other"]
    with pytest.raises(InputError, match="only: fats is not a variant; choose from 'fast', 'slow', 'other'"):
        comparison(given, only=["fats"])
    with pytest.raises(
        InputError, match="algorithms: the file has variants already; remove --algorithms, or choose some with --only"
    ):
        comparison(given, algorithms=["fedavg"])


def test_the_reference_is_asked_for_or_fedavg_or_the_first(tmp_path: Path) -> None:
    given = read(tmp_path, variants={**TWO, "other": []}, reference="slow")
    assert comparison(given).measure.reference == "slow"
    assert comparison(given, reference="other").measure.reference == "other"
    assert comparison(given, only=["fast", "other"]).measure.reference == "fast"  # the file's does not take part
    assert comparison(given, only=["fast"]).measure.reference is None
    assert comparison(StudyFile(), algorithms=["fedprox", "fedavg"]).measure.reference == "fedavg"
    assert comparison(StudyFile(), algorithms=["fedprox", "moon"]).measure.reference == "fedprox"
    with pytest.raises(InputError, match="reference: solw is not a variant; choose one of fast, slow"):
        comparison(read(tmp_path, variants=TWO, reference="solw"))


def test_the_measure_is_that_of_the_command_or_the_file(tmp_path: Path) -> None:
    given = read(tmp_path, variants=TWO, at="uploads", until=90, last=3, target=0.5)
    measure = comparison(given).measure
    assert (measure.at, measure.until, measure.last, measure.target) == ("uploads", 90, 3, 0.5)
    measure = comparison(given, at="bytes", target=0.75).measure
    assert (measure.at, measure.last, measure.target) == ("bytes", 3, 0.75)
    assert measure.until is None  # 90 uploads are not 90 bytes
    assert comparison(given, at="uploads").measure.until == 90
    plain = read(tmp_path, variants=TWO, base={"target_accuracy": 0.25})
    assert comparison(plain).measure.target == 0.25


def test_methods_are_compared_at_equal_virtual_time_if_one_is_asynchronous() -> None:
    def measured(*words: str, algorithms: tuple[str, ...] = ("fedavg", "fedbuff")) -> tuple[str, float | None]:
        found = comparison(StudyFile(), words, algorithms).measure
        return found.at, found.until

    assert measured(algorithms=("fedavg", "fedprox")) == ("rounds", None)
    assert measured("limit_seconds=500", algorithms=("fedavg", "fedprox")) == ("rounds", None)
    assert measured() == ("time", None)
    assert measured("limit_seconds=500") == ("time", 500.0)
    given = StudyFile(variants={"a": ["algorithm=fedbuff", "limit_seconds=9"], "b": ["limit_seconds=8"]})
    assert comparison(given).measure.until is None  # the shorter one ends the comparison
    assert comparison(StudyFile(), ["limit_seconds=500"], ["fedbuff"], at="rounds").measure.until is None


def test_an_experiment_alone_is_a_comparison_of_its_method(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("{algorithm: fedprox, clients: 3}")
    plan = comparison(StudyFile.read(tmp_path / "one.yaml"), seeds=[0])
    assert (plan.variants, plan.measure.reference) == (["fedprox"], None)
    assert comparison(StudyFile(), ["algorithm=fedagg"]).variants == ["fedagg"]
    (tmp_path / "one.yaml").write_text("{klients: 3}")
    with pytest.raises(InputError, match="klients is not a setting"):
        comparison(StudyFile.read(tmp_path / "one.yaml"))
