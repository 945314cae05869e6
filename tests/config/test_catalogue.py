"""Settings in words."""

import pytest

from fedkeel import Experiment
from fedkeel.config.catalogue import Setting, groups, values


def told(experiment: Experiment) -> dict[str, Setting]:
    return {each.name: each for group in groups(experiment) for each in group.settings}


@pytest.mark.parametrize(
    ("name", "default", "words"),
    [
        ("rounds", "30", "an integer from 1"),
        ("threads", "1", "an integer from 1 to 256"),
        ("local.lr", "0.05", "a number above 0"),
        ("local.lr_decay", "1.0", "a number above 0 and up to 1"),
        ("local.momentum", "0.0", "a number from 0 and below 1"),
        ("local.batch_size", "32", "an integer from 1 or full"),
        ("local.optimizer", "sgd", "sgd, adam or adamw"),
        ("local.betas", "[0.9, 0.999]", "a list of 2, each a number from 0 and below 1"),
        ("fleet.rho", "0.0", "a number from 0 to 1"),
        ("faults.corruptions", "[nan, infinite, shape, dtype, future]", "a list of nan, infinite, huge, shape, "),
        ("evaluate_local", "false", "true or false"),
        ("executor.native", "null", "true, false or null"),
        ("dataset", "fashion-mnist-mini", "a name or a section"),
        ("wire", "[]", "a name, a section or a list of these"),
        ("local", "", "a section"),
        ("wire.0.norm", "", "a number above 0"),
        ("partition.alpha", "0.5", "a number above 0"),
        ("partition.kind", "iid", "iid, dirichlet, shards, classes, column or module:function"),
        ("algorithm.cap", "10.0", "a number from 1 or null"),
        ("algorithm.gradient_batches", "1", "1 or full"),
        ("model.norm", "batch", "batch, group or none"),
    ],
)
def test_defaults_and_values(name: str, default: str, words: str) -> None:
    found = told(Experiment(algorithm="fedagg", partition="dirichlet", model="vgg11"))[name]
    assert found.default == default
    assert found.values.startswith(words)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "any value"),
        ({"type": "number", "maximum": 5}, "a number up to 5"),
        ({"type": "number", "exclusiveMaximum": 5}, "a number below 5"),
        ({"type": "number", "minimum": -3, "maximum": 1e30}, "a number from -3"),
        ({"type": "array", "items": {"type": "string"}}, "a list of text"),
        ({"type": "object"}, "a section"),
    ],
)
def test_values_of_any_schema(schema: dict[str, object], words: str) -> None:
    assert values("", schema) == words


def test_the_chosen_method_model_and_partition_are_there_and_no_other() -> None:
    mixed = told(Experiment(client="fedprox", server="fedbuff"))
    assert {"algorithm.mu", "algorithm.buffer_size"} <= mixed.keys()
    assert not {"algorithm.weighting", "partition.alpha", "model.norm"} & mixed.keys()
