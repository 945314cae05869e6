"""The law by which updates grow, against its differential equation, and kappa where the truth is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkeel.methods.growth import bend, growth, kappa, no_record, recorded


def followed(
    k: float, loss: float, path: float, slope: Callable[[float], float] = float, pieces: int = 100_000
) -> tuple[float, float]:
    """(How far a straight path leads, the mean loss on it): small steps by gradients, by which the loss falls.

    Gradients are k slope(L), by default k L.
    """
    ds, far, total = path / pieces, 0.0, 0.0
    for _ in range(pieces):
        middle = loss - (k * slope(loss)) ** 2 * ds / 2
        far += k * slope(middle) * ds
        total += middle * ds
        loss -= (k * slope(middle)) ** 2 * ds
    return far, total / path


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("stretch", [1.25, 5.0])
def test_updates_grow_as_gradients_in_proportion_to_the_loss_make_them(k: float, stretch: float) -> None:
    """At losses that are so small that e^L - 1 is L."""
    part, whole = followed(k, 1e-4, 1.0), followed(k, 1e-4, stretch)
    found = bend(tensor(part[0] ** 2), tensor(1.0), tensor(part[1]))
    assert float(growth(found, tensor(1.0), tensor(stretch))) == pytest.approx(whole[0] / part[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [2.3, 1.0])
def test_near_chance_gradients_of_cross_entropy_hardly_fall_with_the_loss(loss: float) -> None:
    """They are like 1 - e^-L. With the loss itself in the place of e^L - 1, the factor would be 2 to 4 % too small."""
    part, whole = (followed(0.3, loss, path, lambda at: 1 - math.exp(-at), 20_000) for path in (1.0, 5.0))
    factor = growth(bend(tensor(part[0] ** 2), tensor(1.0), tensor(part[1])), tensor(1.0), tensor(5.0))
    assert float(factor) == pytest.approx(whole[0] / part[0], rel=5e-3)


@given(st.floats(-12, 12), st.floats(1, 1000), st.floats(0.1, 10))
def test_growth_is_between_none_and_proportion_and_falls_with_kappa(power: float, stretch: float, k: float) -> None:
    less, more = (float(growth(tensor(10**power * factor), tensor(0.3), tensor(stretch))) for factor in (1.0, 1 + k))
    assert 1 - 1e-9 <= more <= less * (1 + 1e-9)
    assert less <= stretch * (1 + 1e-9)


@pytest.mark.parametrize(
    ("square", "loss", "factor"), [(0.0, 1.0, 5.0), (1.0, 0.0, 1 + np.log(5) / 50), (1.0, 1e4, 5.0), (0.0, 0.0, 5.0)]
)
def test_growth_at_its_ends(square: float, loss: float, factor: float) -> None:
    """Nobody moved, a loss of zero, a loss beyond all bounds."""
    found = growth(bend(tensor(square), tensor(1.0), tensor(loss)), tensor(1.0), tensor(5.0))
    assert float(found) == pytest.approx(factor, rel=1e-6)


def test_a_device_is_drawn_halfway_to_the_others() -> None:
    """x per path: 1, 4 and 64, so its own and 4 in geometric mean, 2, 4, 16; paths are 1, 2 and 1."""
    x, paths = np.array([1.0, 8.0, 64.0]), np.array([1.0, 2.0, 1.0])
    found = growth(*(torch.tensor(each) for each in (np.log1p(x), paths, np.full(3, 5.0))))
    drawn = np.array([2.0, 8.0, 16.0])
    np.testing.assert_allclose(found, np.log(1 + 5 * drawn) / np.log(1 + drawn), rtol=1e-12)


def rounds(true_kappa: float, count: int, spread: float = 0.0) -> Tensor:
    """What is recorded of rounds whose updates follow the law: half of ten devices do one to four parts of five."""
    rng = np.random.default_rng(0)
    record = no_record(torch.zeros(1))
    for _ in range(count):
        done = np.array([5] * 5 + [*rng.integers(1, 5, 5)])
        x = 0.5 * done  # of devices that are alike
        norms = np.log1p(x) * np.exp(spread * rng.normal(size=10))
        seen = np.log1p(x) / true_kappa  # of which the loss tells another exponent
        told = norms**2, seen, done.astype(float), 5 / done
        record = recorded(record, *map(torch.tensor, told), torch.tensor(done < 5))
    return record


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.5])
def test_kappa_is_found(truth: float) -> None:
    assert float(kappa(rounds(truth, 10))) == pytest.approx(truth, rel=0.1)
    assert float(kappa(rounds(truth, 100, spread=0.1))) == pytest.approx(truth, rel=0.4)


@pytest.mark.parametrize(("late", "finished"), [(5, 5), (9, 1), (1, 9)])
def test_gaps_weigh_as_much_as_chance_allows(late: int, finished: int) -> None:
    """Paths that need not become longer: what is recorded is chance, drawn many times, and its variance is known."""
    rng, spread = np.random.default_rng(1), 0.3
    ones = torch.ones(late + finished, dtype=torch.float64)
    who, drawn = torch.arange(len(ones)) < late, []
    for _ in range(4000):
        square = torch.tensor(np.exp(2 * spread * rng.normal(size=len(ones))))
        record = recorded(no_record(ones), square, ones, ones, ones, who)
        drawn.append(float(record[0]))
    assert np.var(drawn) == pytest.approx(float(record[-3]) * spread**2, rel=0.1)  # 2 % is one deviation


def test_kappa_is_one_as_long_as_nothing_is_known() -> None:
    record = no_record(torch.zeros(1))
    assert float(kappa(record)) == pytest.approx(1)
    for late in ([True, True], [False, False]):
        ones = tensor(1.0, 1.0)
        same = recorded(record, tensor(1.0, 2.0), ones, ones, 5 * ones, torch.tensor(late))
        assert torch.equal(same, record)


def test_devices_that_did_not_move_say_nothing_of_lengths() -> None:
    """One that finished and one that is late; they stand in the middle, where they draw nobody."""
    record, late = rounds(2.0, 3), torch.tensor([False, True, False, True])
    ones = torch.ones(4, dtype=torch.float64)
    numbers = tensor(1.0, 0.5, 0.0, 0.0), ones, ones, tensor(1.0, 5.0, 1.0, 5.0)
    with_them = recorded(record, *numbers, late)
    without = recorded(record, *(each[:2] for each in numbers), late[:2])
    torch.testing.assert_close(with_them, without)
    assert not torch.equal(without, record)
