from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fedkeel.data import statistics
from fedkeel.data.partition import Assignment
from fedkeel.data.statistics import describe_labels, label_counts, mean_wasserstein
from fedkeel.errors import InputError

COUNTS = st.integers(1, 4).flatmap(
    lambda classes: st.lists(st.lists(st.integers(0, 9), min_size=classes, max_size=classes), min_size=1, max_size=5)
)


def cheapest_transport(source: np.ndarray, target: np.ndarray) -> float:
    """Least mass moved, by linear programming over all transport plans [from, to]."""
    classes = len(source)
    leaves = np.kron(np.eye(classes), np.ones(classes))
    arrives = np.kron(np.ones(classes), np.eye(classes))
    cost = 1 - np.eye(classes).ravel()
    plan = linprog(cost, A_eq=np.vstack([leaves, arrives]), b_eq=np.concatenate([source, target]))
    assert plan.success
    return float(plan.fun)


@pytest.mark.slow
@settings(max_examples=40)
@given(COUNTS)
def test_the_distance_is_the_cheapest_transport(rows):
    counts = np.array(rows)
    if not counts.any():
        return
    overall = counts.sum(axis=0) / counts.sum()
    each = [cheapest_transport(row / row.sum(), overall) for row in counts if row.any()]
    assert mean_wasserstein(counts) == pytest.approx(np.mean(each), abs=1e-9)


def test_equal_mixes_are_at_no_distance():
    assert mean_wasserstein(np.array([[1, 2, 3], [10, 20, 30]])) == pytest.approx(0)


@pytest.mark.parametrize("classes", [1, 2, 10])
def test_one_class_a_client(classes):
    assert mean_wasserstein(7 * np.eye(classes, dtype=np.int64)) == pytest.approx(1 - 1 / classes)


def test_empty_clients_are_left_out():
    assert mean_wasserstein(np.array([[4, 0], [0, 0], [0, 4]])) == pytest.approx(0.5)


def test_no_samples_have_no_distance():
    with pytest.raises(InputError, match="counts must have at least one client with samples; got none"):
        mean_wasserstein(np.zeros((3, 2), dtype=np.int64))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=40))
def test_counts_are_those_of_a_loop(samples):
    labels = np.array([label for label, _ in samples], dtype=np.int64)
    assignment = Assignment.from_owner(np.array([owner for _, owner in samples], dtype=np.int64), 5)
    expected = [[samples.count((label, client)) for label in range(3)] for client in range(5)]
    assert label_counts(labels, assignment, 3).tolist() == expected


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_out_of_range_is_refused(label):
    assignment = Assignment.from_owner(np.zeros(2, dtype=np.int64), 1)
    with pytest.raises(InputError, match=r"labels must be from 0 to 1; got"):
        label_counts(np.array([0, label]), assignment, 2)


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_a_description_is_that_of_all_counts(chunk, monkeypatch):
    monkeypatch.setattr(statistics, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    labels, owner = rng.integers(0, 7, 500), rng.integers(0, 130, 500)
    owner[owner == 3] = 4  # one client is empty
    assignment = Assignment.from_owner(owner, 130)
    counts = label_counts(labels, assignment, 7)
    found = describe_labels(labels, assignment, 7)
    assert found.pop("distance") == pytest.approx(mean_wasserstein(counts), rel=1e-12)
    assert found.pop("counts") == counts[:100].tolist()
    sizes = counts.sum(axis=1)
    assert found == {"clients": 130, "classes": 7, "least": 0, "median": np.median(sizes), "most": sizes.max()}
