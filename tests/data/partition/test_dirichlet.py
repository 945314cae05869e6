from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedkeel.data.partition import Dirichlet
from fedkeel.data.partition.dirichlet import _mix_clients, _open_mix, _split_classes, _take, _top_up
from fedkeel.data.statistics import label_counts, mean_wasserstein
from fedkeel.errors import InputError


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
@pytest.mark.parametrize(("abundance", "tolerance"), [(10, 0.03), (1, 0.1)], ids=["plenty", "all dealt"])
def test_per_client_shares_have_the_moments_of_a_dirichlet_multinomial(alpha, abundance, tolerance):
    """Var of a share of m draws: p (1 - p) (m + alpha) / (m (1 + alpha)), p being the prior.

    Where all samples are dealt, the few clients served last get mixes of their own.
    """
    prior, clients, m = np.array([0.5, 0.3, 0.2]), 20_000, 40
    stock = np.rint(abundance * clients * m * prior).astype(np.int64)
    shares = _mix_clients(stock, np.full(clients, m), alpha, np.random.default_rng(0)) / m
    variance = prior * (1 - prior) * (m + alpha) / (m * (1 + alpha))
    assert (np.abs(shares.mean(axis=0) - prior) < 4 * np.sqrt(variance / clients)).all()
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=tolerance)


def test_per_client_sizes_are_equal():
    labels = np.arange(1003) % 7
    assert set(Dirichlet(per="client").assign(labels, 10, 0).sizes) == {100, 101}


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_per_class_shares_have_the_moments_of_a_dirichlet(alpha):
    """Mean 1/N, variance (1/N) (1 - 1/N) / (N alpha + 1)."""
    clients, classes, m = 20, 1000, 500
    labels = np.repeat(np.arange(classes), m)
    partition = Dirichlet(alpha=alpha, per="class", min_size=0)
    shares = label_counts(labels, partition.assign(labels, clients, 0), classes) / m
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    standard_error = np.sqrt(variance / classes)
    assert np.abs(shares.mean(axis=1) - 1 / clients).max() < 4 * standard_error
    assert shares.var() == pytest.approx(variance, rel=0.05)


def test_per_class_is_as_even_as_per_client_at_alpha_times_classes():
    """About: a mix of C equal classes is Dir(alpha, ..., alpha), whose parameters sum to alpha C."""
    labels = np.repeat(np.arange(10), 20_000)
    per_class = Dirichlet(alpha=0.5, per="class").assign(labels, 500, 0)
    distance = {
        alpha: mean_wasserstein(label_counts(labels, Dirichlet(alpha=alpha, per="client").assign(labels, 500, 0), 10))
        for alpha in (0.5, 5.0)
    }
    assert mean_wasserstein(label_counts(labels, per_class, 10)) == pytest.approx(distance[5.0], abs=0.03)
    assert distance[0.5] > distance[5.0] + 0.25


def test_large_alpha_is_iid_and_small_alpha_is_one_class():
    labels = np.repeat(np.arange(10), 10_000)
    even, uneven = (
        label_counts(labels, Dirichlet(alpha=a, per="client").assign(labels, 100, 0), 10) for a in (1e9, 1e-9)
    )
    assert mean_wasserstein(even) < 0.06
    assert ((uneven > 0).sum(axis=1) == 1).mean() > 0.8


@pytest.mark.slow
def test_what_nobody_drew_is_taken_sample_by_sample():
    """Against the exact distribution of drawing one after another, again where the class is empty."""
    stock, mix, size = (1, 1, 4), (0.6, 0.3, 0.1), 3

    def outcomes(left, taken, probability):
        if sum(taken) == size:
            return {taken: probability}
        mass = sum(q for q, n in zip(mix, left, strict=True) if n)
        total: dict[tuple[int, ...], float] = {}
        for c in range(3):
            if left[c]:
                step = tuple(int(i == c) for i in range(3))
                rest = tuple(n - s for n, s in zip(left, step, strict=True))
                more = tuple(t + s for t, s in zip(taken, step, strict=True))
                for outcome, p in outcomes(rest, more, probability * mix[c] / mass).items():
                    total[outcome] = total.get(outcome, 0) + p
        return total

    exact = outcomes(stock, (0, 0, 0), 1.0)
    draw = np.random.default_rng(0)
    wanted = draw.multinomial(size, mix, size=20_000)
    taken = [tuple(_take(w, np.array(mix), np.array(stock), draw)) for w in wanted]
    observed = [taken.count(outcome) for outcome in exact]
    assert sum(observed) == len(taken)
    assert chisquare(observed, len(taken) * np.array(list(exact.values()))).pvalue > 1e-4


def test_a_mix_without_mass_on_what_is_left_takes_in_proportion_to_it():
    room = np.array([0, 3, 1])
    np.testing.assert_allclose(_open_mix(np.array([1.0, 0.0, 0.0]), room), [0, 0.75, 0.25])
    np.testing.assert_allclose(_open_mix(np.array([1.0, 1e-320, 0.0]), room), [0, 0.75, 0.25])
    np.testing.assert_allclose(_open_mix(np.array([1.0, 1e-300, 3e-300]), room), [0, 0.25, 0.75])


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=5).map(np.array),
    st.lists(st.sampled_from([1.0, 3.0, 1e6]), min_size=1, max_size=20).map(np.array),
    st.sampled_from([1e-9, 0.1, 1.0, 1e9]),
    st.integers(0, 99),
)
def test_a_class_is_split_without_loss(stock, weights, alpha, seed):
    counts = _split_classes(stock, weights, alpha, np.random.default_rng(seed))
    assert counts.shape == (len(stock), len(weights))
    assert counts.min() >= 0
    assert (counts.sum(axis=1) == stock).all()


@pytest.mark.slow
def test_a_split_gives_exact_shares_on_average():
    """Three clients share 2 samples evenly: whoever comes first is not rounded down."""
    draw = np.random.default_rng(0)
    counts = [_split_classes(np.array([2]), np.ones(3), 1e9, draw)[0] for _ in range(3000)]
    np.testing.assert_allclose(np.mean(counts, axis=0), 2 / 3, atol=0.04)


@given(st.lists(st.integers(0, 9), max_size=60).map(lambda o: np.array(o, dtype=np.int64)), st.integers(0, 6))
def test_the_smallest_are_topped_up_from_the_largest(owners, fewest):
    if 10 * fewest > len(owners):
        return
    topped = _top_up(owners, 10, fewest, np.random.default_rng(0))
    before, after = (np.bincount(o, minlength=10) for o in (owners, topped))
    heap = [-size for size in before if size >= fewest]
    heapq.heapify(heap)
    missing = int(np.maximum(fewest - before, 0).sum())
    for _ in range(missing):
        heapq.heapreplace(heap, heap[0] + 1)
    expected = [-size for size in heap] + [fewest] * int((before < fewest).sum())
    assert sorted(after) == sorted(expected)
    assert (owners != topped).sum() == missing


def test_the_largest_gives_of_all_its_classes():
    """Owners come class after class, so what is given must not come from the end only."""
    given_away = np.flatnonzero(_top_up(np.zeros(2000, dtype=np.int64), 201, 1, np.random.default_rng(0)))
    assert len(given_away) == 200
    assert chisquare(np.bincount(given_away // 400, minlength=5)).pvalue > 1e-4


@given(st.sampled_from(["client", "class"]), st.integers(0, 5), st.sampled_from([1.0, 4.0]), st.integers(0, 99))
def test_no_client_is_below_the_least_size(per, least, ratio, seed):
    labels = np.arange(50) % 3
    partition = Dirichlet(alpha=0.05, per=per, min_size=least, size_ratio=ratio)
    assert partition.assign(labels, 10, seed).sizes.min() >= least


def test_clients_are_empty_only_if_allowed():
    labels = np.arange(50) % 3
    sizes = [Dirichlet(alpha=0.05, per="class", min_size=m).assign(labels, 10, 0).sizes.min() for m in (0, 1)]
    assert sizes == [0, 1]
    assert Dirichlet(per="class", min_size=0).assign(labels, 100, 0).sizes.sum() == 50


@pytest.mark.parametrize("per", ["client", "class"])
def test_a_least_size_that_the_samples_do_not_allow_is_refused(per):
    with pytest.raises(InputError) as error:
        Dirichlet(per=per, min_size=6).assign(np.arange(50) % 3, 10, 0)
    assert str(error.value) == ("partition.min_size must be at most 5 with 10 clients and 50 samples; got 6")
