"""FedProx against its rounds written out in numpy."""

import numpy as np
import pytest

from tests.algorithms import bench
from tests.algorithms.bench import EXECUTORS, LR, ROUNDS, SIZES, Vector


def by_hand(mu: float, momentum: float = 0.0) -> Vector:
    x = bench.start()
    for round_ in range(1, ROUNDS + 1):
        models, sizes = [], []
        for client in bench.chosen(round_):
            w, v = x.copy(), np.zeros_like(x)
            for batch in bench.batches(round_, client):
                v = momentum * v + bench.gradient(w, *batch) + mu * (w - x)
                w = w - LR * v
            models.append(w)
            sizes.append(SIZES[client])
        x = np.average(models, axis=0, weights=sizes)
    return x


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rounds_by_hand(executor: str) -> None:
    result, _ = bench.train({"name": "fedprox", "mu": 0.7}, executor)
    np.testing.assert_allclose(bench.weights(result), by_hand(0.7), rtol=0, atol=1e-12)


def test_with_momentum() -> None:
    result, _ = bench.train({"name": "fedprox", "mu": 0.7}, local={"momentum": 0.9})
    np.testing.assert_allclose(bench.weights(result), by_hand(0.7, 0.9), rtol=0, atol=1e-12)


def test_the_regulariser_changes_the_gradient_and_zero_is_fedavg() -> None:
    average, _ = bench.train("fedavg")
    none, _ = bench.train({"name": "fedprox", "mu": 0})
    some, _ = bench.train({"name": "fedprox", "mu": 0.7})
    np.testing.assert_allclose(bench.weights(none), bench.weights(average), rtol=0, atol=1e-12)
    assert np.abs(bench.weights(some) - bench.weights(average)).max() > 1e-3


def test_nothing_more_travels_than_in_fedavg() -> None:
    average, _ = bench.train("fedavg")
    proximal, _ = bench.train("fedprox")
    for key in ("bytes_up", "bytes_down"):
        assert proximal.summary[key] == average.summary[key] == ROUNDS * bench.PER_ROUND * 8 * bench.start().size
