"""The schema agrees with what is read: of files in this repository, of short spellings, and of mistakes."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fedkeel import Experiment, InputError, models
from fedkeel.config import yamltext
from fedkeel.config.schema import experiment_schema
from fedkeel.data import partition
from fedkeel.methods import methods
from fedkeel.study.schema import file_schema
from tests.helpers.repository import ROOT

SCHEMA = file_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FILES = sorted((ROOT / "experiments").rglob("*.yaml"))


def problems(values: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(values)]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_files_of_this_repository_are_valid(path: Path) -> None:
    assert problems(yamltext.read(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "algorithm: fedagg",
        "algorithm: {name: fedagg, cap: null, phi1: sum}",
        "algorithm: {server_lr: 0.5}",
        "algorithm: {name: fedavg, client: fedprox, mu: 1}",
        "algorithm: {name: fedasmu, ablation: 0}",
        "{client: fedprox, server: fedbuff}",
        "partition: dirichlet",
        "partition: pathological",
        "partition: {kind: pathological, shards_per_client: 3}",
        "partition: {size_ratio: 2}",
        "model: vgg11",
        "model: {name: vgg11, norm: group}",
        "model: {projection: 8}",
        "wire: cast",
        "wire: {kind: clip, norm: 5}",
        "wire: [cast, {kind: clip, norm: 5}]",
        "executor: serial",
        "executor: {stack: 0, channels_last: true}",
        "{per_round: null, participation: 0.1}",
        "local: {batch_size: full, lr: 1, betas: [0.9, 0.999]}",
        "sampling: scheme1",
    ],
)
def test_short_spellings_are_valid_where_they_are_read(text: str) -> None:
    Experiment(**yaml.safe_load(text))
    assert problems(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "algorithm: mine:m",
        "algorithm: {name: mine:m, beta: 3}",
        "algorithm: {client: 'mine:Rule', beta: 1}",
        "model: {name: 'mine:net', width: 3}",
        "dataset: mine:d",
        "partition: {kind: 'mine:deal', anything: 3}",
    ],
)
def test_the_users_own_code_may_have_any_settings(text: str) -> None:
    assert problems(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "lr: 0.1",
        "clinets: 3",
        "rounds: many",
        "rounds: 0",
        "rounds: null",
        "local: {lr: -1}",
        "local: {lrr: 1}",
        "local: 3",
        "local: {optimizer: rmsprop}",
        "algorithm: fedavgg",
        "algorithm: {name: fedagg, alhpa: 1}",
        "algorithm: {mu: 1}",
        "algorithm: {name: fedprox, mu: -1}",
        "partition: dirchlet",
        "partition: {alpha: 1}",
        "partition: {kind: dirichlet, alhpa: 1}",
        "partition: {kind: pathological, alpha: 1}",
        "model: lenet",
        "model: {norm: batch}",
        "model: {name: vgg11, norm: layer}",
        "dataset: mnits",
        "dataset: {name: mnist, limit: 3}",
        "wire: clap",
        "wire: [{kind: clip}]",
        "wire: {kind: cast, norm: 3}",
        "wire: {norm: 3}",
        "executor: gpu",
    ],
)
def test_mistakes_are_refused_as_they_are_when_they_are_read(text: str) -> None:
    with pytest.raises(InputError):
        Experiment(**yaml.safe_load(text))
    assert problems(yaml.safe_load(text)) != []


def test_comparisons() -> None:
    good = {"base": {"rounds": 3, "algorithm": "fedagg"}, "variants": {"a": ["rounds=1"]}, "seeds": [1]}
    assert problems(good) == []
    assert problems({"base": "x.yaml", "scenes": {"a": []}}) == []
    for wrong in ({"lsat": 3}, {"seeds": "all"}, {"base": {"rouns": 3}}, {"variants": ["a"]}):
        assert problems({**good, **wrong}), wrong


@pytest.mark.parametrize("kind", partition.names())
def test_what_show_prints_is_valid(kind: str) -> None:
    assert problems(yaml.safe_load(Experiment(partition=kind).to_yaml())) == []


@pytest.mark.parametrize("name", methods())
def test_every_method_with_all_its_settings_is_valid(name: str) -> None:
    assert problems(yaml.safe_load(Experiment(algorithm=name).to_yaml())) == []


@pytest.mark.parametrize("name", models.names())
def test_every_model_with_all_its_options_is_valid(name: str) -> None:
    assert problems({"model": {"name": name, **models.options(name)}}) == []


def test_settings_are_described() -> None:
    found = experiment_schema()["properties"]
    assert found["rounds"]["description"].startswith("The number of rounds")
    assert (
        found["local"]["properties"]["lr"]["description"]
        == "The learning rate of the clients, before `lr_decay` and `schedule`."
    )
    assert all(each.get("description") for each in found.values())
