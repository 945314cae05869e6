from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.data.partition import Shards
from fedkeel.data.statistics import label_counts
from fedkeel.errors import InputError


def test_mcmahans_mnist_partition():
    """200 shards of 300 samples of one class each, two a client."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    counts = label_counts(labels, Shards().assign(labels, 100, 0), 10)
    assert set(counts.ravel()) == {0, 300, 600}
    assert (counts.sum(axis=1) == 600).all()
    assert 0 < (counts == 600).sum() < 30  # 100 * 19 / 199 = 9.5 on average


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 4), st.integers(0, 99))
def test_sizes_are_as_equal_as_possible(samples, clients, shards, seed):
    if clients * shards > samples:
        return
    labels = np.arange(samples) % 3
    assert np.ptp(Shards(shards_per_client=shards).assign(labels, clients, seed).sizes) <= 1


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 20), st.sampled_from([1.0, 2.5]))
def test_a_client_holds_as_many_runs_of_the_sorted_samples_as_shards(clients, shards, spare, ratio):
    """With a label for each sample the sorted order is known, and so are a client's runs in it."""
    labels = np.random.default_rng(0).permutation(clients * shards + spare)
    assignment = Shards(shards_per_client=shards, size_ratio=ratio).assign(labels, clients, 1)
    for own in assignment:
        runs = 1 + (np.diff(np.sort(labels[own])) > 1).sum()
        assert runs <= shards
        assert len(own) >= shards


def test_samples_of_a_class_come_in_random_order():
    own = Shards().assign(np.zeros(1000, dtype=int), 5, 0)[0]
    assert (np.diff(own) > 1).mean() > 0.5


def test_shards_are_dealt_at_random():
    labels = np.repeat(np.arange(20), 10)
    counts = label_counts(labels, Shards().assign(labels, 10, 0), 20)
    pairs = [tuple(np.flatnonzero(row)) for row in counts]
    assert pairs != [tuple(np.flatnonzero(row)) for row in label_counts(labels, Shards().assign(labels, 10, 1), 20)]
    assert any(b - a > 1 for a, b in pairs)


def test_more_shards_than_samples_are_refused():
    with pytest.raises(InputError) as error:
        Shards(shards_per_client=4).assign(np.zeros(11, dtype=int), 3, 0)
    assert str(error.value) == ("partition.shards_per_client must be at most 3 with 3 clients and 11 samples; got 4")
