"""A cap on the clients' sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import chisquare, hypergeom

from fedkeel import Experiment, FederatedData, InputError
from fedkeel.data.partition import Assignment, Classes, Dirichlet, Iid, Partition, Shards
from fedkeel.data.statistics import label_counts

KINDS = [Iid(size_ratio=3), Dirichlet(per="client"), Dirichlet(per="class", min_size=0), Shards(), Classes()]
LABELS = np.repeat(np.arange(5), 40)


@given(st.sampled_from(KINDS), st.integers(4, 20), st.integers(1, 60), st.integers(0, 2**40))
def test_clients_keep_some_of_what_they_were_dealt(partition: Partition, clients: int, most: int, seed: int) -> None:
    whole = partition.assign(LABELS, clients, seed)
    capped = partition.model_copy(update={"max_size": most}).assign(LABELS, clients, seed)
    assert len(capped) == clients
    assert capped.sizes.tolist() == np.minimum(whole.sizes, most).tolist()
    assert len(set(capped.indices.tolist())) == len(capped.indices) == capped.sizes.sum()
    for client in range(clients):
        assert set(capped[client].tolist()) <= set(whole[client].tolist())
        assert (np.diff(capped[client]) > 0).all()


@pytest.mark.parametrize("partition", KINDS, ids=repr)
def test_a_cap_that_nobody_reaches_changes_nothing(partition: Partition) -> None:
    whole = partition.assign(LABELS, 10, 3)
    capped = partition.model_copy(update={"max_size": int(whole.sizes.max())}).assign(LABELS, 10, 3)
    assert np.array_equal(whole.indices, capped.indices)
    assert np.array_equal(whole.offsets, capped.offsets)


@pytest.mark.slow
def test_every_subset_is_alike_likely() -> None:
    """Three of a client's five samples: ten subsets; the next client's draw is its own."""
    whole = Assignment(np.array([2, 3, 5, 7, 11, 0, 1, 4, 6, 8]), np.array([0, 5, 10]))
    draws, found = 3000, np.zeros((10, 10))
    subsets: dict[tuple[int, ...], int] = {}
    for seed in range(draws):
        capped = whole.capped(3, np.random.default_rng(seed))
        kept = (tuple(capped[0].tolist()), tuple(np.searchsorted([0, 1, 4, 6, 8], capped[1]).tolist()))
        first = tuple(np.searchsorted([2, 3, 5, 7, 11], kept[0]).tolist())
        found[subsets.setdefault(first, len(subsets)), subsets.setdefault(kept[1], len(subsets))] += 1
    assert len(subsets) == 10
    assert chisquare(found.ravel()).pvalue > 0.001


@pytest.mark.slow
def test_the_mix_of_labels_stays_as_it_is_on_average() -> None:
    """50 of a client's 200 samples hold each class with a hypergeometric count."""
    labels = np.repeat([0, 1], [120, 80])
    counts = [label_counts(labels, Iid(max_size=50).assign(labels, 1, seed), 2)[0].tolist() for seed in range(1500)]
    assert {sum(each) for each in counts} == {50}
    zeros = np.array(counts)[:, 0]
    law = hypergeom(200, 120, 50)
    assert abs(zeros.mean() - law.mean()) < 4 * law.std() / len(zeros) ** 0.5
    assert zeros.var() == pytest.approx(law.var(), rel=0.15)


def test_what_is_kept_depends_on_the_seed_alone_and_grows_with_the_cap() -> None:
    one, two, other = (Iid(max_size=m).assign(LABELS, 4, seed) for m, seed in ((20, 1), (30, 1), (20, 2)))
    assert np.array_equal(one.indices, Iid(max_size=20).assign(LABELS, 4, 1).indices)
    assert not np.array_equal(one.indices, other.indices)
    assert set(one[2].tolist()) < set(two[2].tolist())


def test_samples_that_nobody_has_disturb_nothing() -> None:
    x = np.arange(200.0)[:, None]
    data = FederatedData.from_arrays(x, LABELS, clients=4, partition=Iid(max_size=20), test=(x, LABELS))
    assert data.sizes.tolist() == [20] * 4
    assert data.label_counts().sum() == 80
    samples, labels = data.train_batch(data.client(1))
    assert labels.tolist() == (samples[:, 0] // 40).long().tolist()
    held = set(labels.tolist())
    assert set(data.test.y[data.test_share(1, 0)].tolist()) == held


def test_an_impossible_cap_is_refused() -> None:
    for bad in ({"max_size": 0}, {"max_size": 1.5}, {"kind": "dirichlet", "max_size": 3, "min_size": 4}):
        with pytest.raises(InputError, match=r"partition\.max_size"):
            Experiment(partition=bad)
    with pytest.raises(ValidationError):
        Dirichlet(min_size=2, max_size=1)
    assert Experiment(partition={"kind": "dirichlet", "max_size": 3, "min_size": 3}).partition.max_size == 3
