"""FedProx against its rounds written out in numpy."""

import numpy as np
import pytest

from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, Vector


def by_hand(mu: float, momentum: float = 0.0) -> Vector:
    x = federation.start()
    for round_ in range(1, ROUNDS + 1):
        models, sizes = [], []
        for client in federation.chosen(round_):
            w, v = x.copy(), np.zeros_like(x)
            for batch in federation.batches(round_, client):
                v = momentum * v + federation.gradient(w, *batch) + mu * (w - x)
                w = w - LR * v
            models.append(w)
            sizes.append(SIZES[client])
        x = np.average(models, axis=0, weights=sizes)
    return x


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str) -> None:
    result, _ = federation.train({"name": "fedprox", "mu": 0.7}, executor)
    np.testing.assert_allclose(federation.weights(result), by_hand(0.7), rtol=0, atol=1e-12)


def test_with_momentum() -> None:
    result, _ = federation.train({"name": "fedprox", "mu": 0.7}, local={"momentum": 0.9})
    np.testing.assert_allclose(federation.weights(result), by_hand(0.7, 0.9), rtol=0, atol=1e-12)


def test_the_regulariser_changes_the_gradient_and_zero_is_fedavg() -> None:
    average, _ = federation.train("fedavg")
    none, _ = federation.train({"name": "fedprox", "mu": 0})
    some, _ = federation.train({"name": "fedprox", "mu": 0.7})
    np.testing.assert_allclose(federation.weights(none), federation.weights(average), rtol=0, atol=1e-12)
    assert np.abs(federation.weights(some) - federation.weights(average)).max() > 1e-3


def test_nothing_more_travels_than_in_fedavg() -> None:
    average, _ = federation.train("fedavg")
    proximal, _ = federation.train("fedprox")
    for key in ("bytes_up", "bytes_down"):
        assert (
            proximal.summary[key] == average.summary[key] == ROUNDS * federation.PER_ROUND * 8 * federation.start().size
        )
