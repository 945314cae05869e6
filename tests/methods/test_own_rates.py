"""Which rules set learning rates of their own: a server on real machines refuses such rates from clients of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import Experiment, FederatedData, run
from fedkeel.methods import methods
from fedkeel.server.gate import Gate
from tests.helpers import federation
from tests.helpers.methods import few, small


def federated() -> FederatedData:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, federation.FEATURES)), np.arange(8) % 2) for _ in range(4)]
    return FederatedData.from_clients(clients, test=clients[0])


@pytest.mark.parametrize("name", sorted(methods()))
def test_clients_train_at_the_rates_that_they_were_sent_unless_their_rule_says_otherwise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, judge = list[bool](), Gate.judge

    def judged(self: Gate, orders: Any, trained: Any, altered: bool = False) -> Any:
        own.extend(not torch.equal(trained.lr[row, : each.epochs], each.lr) for row, each in enumerate(orders))
        return judge(self, orders, trained, altered)

    monkeypatch.setattr(Gate, "judge", judged)
    experiment = Experiment(
        algorithm=small(name), schedule=few(name), clients=4, per_round=3, rounds=3,
        local={"epochs": 3, "batch_size": 4}, threads=1, executor={"kind": "serial"},
    )  # fmt: skip
    run(experiment, data=federated(), model=federation.net(4))
    assert own
    assert any(own) == experiment.algorithm.rules()[0].own_rates
