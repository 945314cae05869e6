from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.data.partition import Classes
from fedkeel.data.statistics import label_counts
from fedkeel.errors import InputError


def counts_of(partition: Classes, stock: list[int], clients: int, seed: int) -> np.ndarray:
    labels = np.repeat(np.arange(len(stock)), stock)
    return label_counts(labels, partition.assign(labels, clients, seed), len(stock))


def is_possible(classes: int, stock: list[int], clients: int) -> bool:
    """Try all ways to give each client `classes` of the classes."""
    ways = product(combinations(range(len(stock)), classes), repeat=clients)
    return any(all(1 <= sum(c in held for held in way) <= n for c, n in enumerate(stock)) for way in ways)


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([1.0, 2.0]),
    st.integers(0, 99),
)
def test_refused_only_if_there_is_no_way_at_all(classes, stock, clients, ratio, seed):
    partition = Classes(classes=classes, size_ratio=ratio)
    if is_possible(classes, stock, clients):
        assert ((counts_of(partition, stock, clients, seed) > 0).sum(axis=1) == classes).all()
    else:
        with pytest.raises(InputError, match=r"partition.classes|clients must be"):
            counts_of(partition, stock, clients, seed)


@given(
    st.integers(1, 6),
    st.lists(st.integers(1, 200), min_size=1, max_size=12),
    st.integers(1, 40),
    st.sampled_from([1.0, 1.5, 7.0]),
    st.integers(0, 99),
)
def test_holders_are_spread_as_evenly_as_the_samples_allow(classes, stock, clients, ratio, seed):
    try:
        counts = counts_of(Classes(classes=classes, size_ratio=ratio), stock, clients, seed)
    except InputError:
        return
    assert ((counts > 0).sum(axis=1) == classes).all()
    holders = (counts > 0).sum(axis=0)
    full = holders == np.minimum(stock, clients)
    assert (holders[~full] >= holders.max() - 1).all()


@pytest.mark.parametrize("clients", [10, 50, 51])
def test_equal_weights_divide_a_class_equally(clients):
    counts = counts_of(Classes(classes=3), [997] * 10, clients, 0)
    for row in counts.T:
        assert np.ptp(row[row > 0]) <= 1


def test_classes_go_together_at_random():
    held = counts_of(Classes(classes=2), [1000] * 10, 1000, 0) > 0
    pairs = {tuple(np.flatnonzero(row)) for row in held}
    assert pairs == set(combinations(range(10), 2))


def test_large_and_small_clients_are_spread_evenly_over_the_classes():
    counts = counts_of(Classes(classes=3, size_ratio=3), [5000] * 10, 50, 0)
    sizes = counts.sum(axis=1)
    large = np.argsort(sizes)[25:]
    assert np.ptp((counts[large] > 0).sum(axis=0)) <= 1
    assert sizes[large].min() > 2 * np.delete(sizes, large).max()


def test_the_odd_samples_of_a_clients_classes_are_not_all_its_own():
    """Every other holder of a class gets one more: 5 fair coins a client have variance 1.25."""
    sizes = counts_of(Classes(classes=5), [150] * 10, 200, 0).sum(axis=1)
    assert sizes.mean() == 7.5
    assert sizes.var() < 2


def test_the_odd_holder_goes_to_a_random_class():
    holders = [(counts_of(Classes(classes=1), [9, 9], 3, seed) > 0).sum(axis=0)[0] for seed in range(200)]
    assert 70 < holders.count(2) < 130


@pytest.mark.parametrize(
    ("classes", "stock", "clients", "fitting"),
    [
        (11, [100] * 10, 20, "must be from 1 to 10"),
        (2, [100] * 10, 4, "must be from 3 to 10"),
        (2, [100, 1, 1], 10, "must be from 1 to 1"),
        (1, [1, 1, 1], 2, "cannot be met"),
    ],
)
def test_what_would_fit_is_told(classes, stock, clients, fitting):
    with pytest.raises(InputError) as error:
        counts_of(Classes(classes=classes), stock, clients, 0)
    assert str(error.value) == (
        f"partition.classes {fitting} with {clients} clients and {len(stock)} classes of "
        f"{min(stock)} to {max(stock)} samples; {'use fewer clients' if 'cannot' in fitting else f'got {classes}'}"
    )
