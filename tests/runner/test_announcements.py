"""The steps of a run, as they are told to whoever shows them."""

import pytest

from fedkeel import Experiment, api
from fedkeel.runner.steps import announce, listening

SMALL = ["model=linear", "clients=4", "per_round=2", "rounds=1", "dataset.train_limit=60", "evaluate_clients=true"]


@pytest.mark.slow
def test_a_run_tells_its_steps_in_their_order() -> None:
    said: list[str] = []
    with listening(said.append):
        api.run(Experiment.build({}, SMALL))
    assert said == [
        "loading the data", "building the model", "choosing an executor", "testing the clients one by one",
    ]  # fmt: skip


def test_nobody_has_to_listen() -> None:
    said: list[str] = []
    announce("before")
    with listening(said.append):
        announce("now")
    announce("after")
    assert said == ["now"]
