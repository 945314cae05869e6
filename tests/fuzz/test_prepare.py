"""Settings that are fine alone and not together are refused before anything is trained."""

import pytest
from hypothesis import HealthCheck, given, settings

from fedkeel import Experiment, InputError
from fedkeel.runner import memory
from fedkeel.runner.prepare import prepare
from tests.helpers import mutations, promise

SMALL = ["dataset.train_limit=60", "dataset.test_limit=20", "clients=5"]


@pytest.fixture(autouse=True)
def _a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 10**9)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(overrides=mutations.combinations())
def test_any_combination(overrides: list[str]) -> None:
    try:
        prepare(Experiment.load(overrides=overrides))
    except InputError as error:
        promise.check_message(str(error), [], [o.partition("=")[0] for o in overrides])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["clients=100000000"], "clients must be at most 6000, as there are 6000 samples; got 100000000"),
        (
            ["clients=100000000", "partition={kind: dirichlet, min_size: 0}"],
            "clients must be at most 1000000 where clients may be empty, as nearly all of them would be; got",
        ),
        (
            ["dataset.resize=2048", "model=mlp-400"],
            "model: mlp-400 for samples of shape (1, 2048, 2048) has 1,677,726,010 parameters: this takes at",
        ),
        (["model.projection=1000000"], "has 411,474,410 parameters: this takes at least 9.88 GB"),
        (["model=cnn", "model.projection=1"], "has 467,995,253 parameters"),
        (["model.projection=1000001"], "model.projection must be a whole number from 1 to 1,000,000, or null; got 100"),
        (
            ["dataset.resize=1024", "local.batch_size=full", "clients=1", "model=linear"],
            "local.batch_size: 6000 samples of shape (1, 1024, 1024): this takes at least 25.2 GB of memory",
        ),
    ],
)  # fmt: skip
def test_what_no_machine_can_do(overrides: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        prepare(Experiment.load(overrides=overrides))
    assert said in str(caught.value)
