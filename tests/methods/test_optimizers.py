"""Which methods go with an optimiser on the clients that is not SGD."""

from typing import Any

import pytest

from fedkeel import Experiment, InputError
from fedkeel.methods import methods
from tests.helpers import federation
from tests.helpers.methods import few, small

NEEDS_SGD = {
    "asofed", "fedagg", "fedasmu", "fedcm", "fedent", "fedlga", "fednorm", "fednova", "fedssmu", "mimelite", "mofedsam",
    "scaffold",
}  # fmt: skip
"""By default: they read gradients off paths, set rates for gradient steps, or have a momentum of their own."""
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["adam", "adamw"])


@OPTIMIZERS
@pytest.mark.parametrize("name", list(methods()))
def test_every_method_accepts_adam_or_says_why_not(name: str, optimizer: str) -> None:
    settings: dict[str, Any] = {"algorithm": small(name), "local": {"optimizer": optimizer}}
    if name not in NEEDS_SGD:
        assert Experiment(**settings).local.optimizer == optimizer
        return
    with pytest.raises(
        InputError, match=rf"^local\.optimizer: {optimizer} cannot be used with {name}, as .+; use sgd$"
    ):
        Experiment(**settings)
    assert Experiment(algorithm=small(name)).local.optimizer == "sgd"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in methods() if name not in NEEDS_SGD])
def test_methods_that_accept_adam_train_with_it_alone_and_in_stacks(name: str) -> None:
    local = {"optimizer": "adam", "lr": 0.01}
    settings = {"local": local, "schedule": few(name)}
    runs = [federation.train(small(name), way, federation.net(4), **settings)[0] for way in ("serial", "stack 3")]
    alone, stacked = (federation.weights(each) for each in runs)
    assert alone == pytest.approx(stacked, abs=1e-9)
    plain, _ = federation.train(small(name), "serial", federation.net(4), schedule=few(name), local={"lr": 0.01})
    assert federation.weights(plain) != pytest.approx(alone, abs=1e-4)


FIXED = {"lambda_lr": 0, "sigma_lr": 0, "iota_lr": 0}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "scaffold", "option": "I"},
        {"name": "fedasmu", **FIXED},
        {"name": "fedssmu", **FIXED},
        {"name": "fedasmu", "ablation": "DA"},
        {"name": "fedssmu", "ablation": 0},
        {"client": "fedavg", "server": "asofed"},
        {"client": "fedasmu", "server": "fedasync"},
    ],
    ids=str,
)
def test_variants_that_read_nothing_off_paths_accept_adam(algorithm: dict[str, Any]) -> None:
    assert Experiment(algorithm=algorithm, local={"optimizer": "adam"}).local.optimizer == "adam"


@pytest.mark.parametrize(
    "algorithm",
    [{"client": "fedprox", "server": "fednova"}, {"client": "fedsam", "server": "fedlga"},
     {"client": "asofed", "server": "fedasync"}, {"name": "fedasmu", **FIXED, "iota_lr": 0.1}],
    ids=str,
)  # fmt: skip
def test_either_half_may_refuse(algorithm: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"local\.optimizer: adam cannot be used with"):
        Experiment(algorithm=algorithm, local={"optimizer": "adam"})
