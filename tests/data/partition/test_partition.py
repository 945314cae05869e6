"""What holds for every kind of partition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.stats import chisquare

from fedkeel.data.partition import (
    ALIASES,
    AnyPartition,
    Assignment,
    Classes,
    Dirichlet,
    Iid,
    Partition,
    Shards,
    describe,
    names,
)
from fedkeel.errors import InputError

BALANCED = np.repeat(np.arange(10), 600)
KINDS = [Iid(), Dirichlet(per="client"), Dirichlet(per="class"), Shards(), Classes()]
RATIOS = st.sampled_from([1.0, 1.5, 2.0, 3.0, 1e6])
PARTITIONS = st.one_of(
    st.builds(Iid, size_ratio=RATIOS),
    st.builds(
        Dirichlet,
        size_ratio=RATIOS,
        alpha=st.sampled_from([1e-9, 0.01, 0.1, 0.5, 1.0, 100.0, 1e9]),
        per=st.sampled_from(["client", "class"]),
        min_size=st.integers(0, 4),
    ),
    st.builds(Shards, size_ratio=RATIOS, shards_per_client=st.integers(1, 4)),
    st.builds(Classes, size_ratio=RATIOS, classes=st.integers(1, 5)),
)
LABELS = st.lists(st.sampled_from([-3, 0, 1, 2, 70_000]), min_size=1, max_size=60).map(np.array)


def is_possible(partition: Partition, labels: np.ndarray, clients: int) -> bool:
    _, stock = np.unique(labels, return_counts=True)
    match partition:
        case Iid():
            return clients <= len(labels)
        case Shards(shards_per_client=shards):
            return clients * shards <= len(labels)
        case Dirichlet(per="client", min_size=least):
            return clients * max(1, least) <= len(labels)
        case Dirichlet(min_size=least):
            return clients * least <= len(labels)
        case Classes(classes=classes):
            return len(stock) <= clients * classes <= sum(min(n, clients) for n in stock)
    raise AssertionError(partition)


@given(PARTITIONS, LABELS, st.integers(1, 12), st.integers(0, 2**40))
def test_every_sample_has_one_client_or_the_setting_is_refused(partition, labels, clients, seed):
    before = labels.copy()
    if not is_possible(partition, labels, clients):
        with pytest.raises(InputError, match=r"must be|cannot be met"):
            partition.assign(labels, clients, seed)
        return
    assignment = partition.assign(labels, clients, seed)
    assert len(assignment) == clients
    assert assignment.sizes.sum() == len(labels)
    assert sorted(assignment.indices) == list(range(len(labels)))
    assert np.array_equal(np.concatenate(list(assignment)), assignment.indices)
    may_be_empty = isinstance(partition, Dirichlet) and partition.per == "class" and partition.min_size == 0
    assert may_be_empty or assignment.sizes.min() >= 1
    assert np.array_equal(labels, before)


@given(PARTITIONS, LABELS, st.integers(1, 12), st.integers(0, 2**40))
def test_the_same_seed_gives_the_same_assignment(partition, labels, clients, seed):
    if not is_possible(partition, labels, clients):
        return
    first, again = (partition.assign(labels, clients, seed) for _ in range(2))
    assert np.array_equal(first.indices, again.indices)
    assert np.array_equal(first.offsets, again.offsets)


@pytest.mark.parametrize("partition", KINDS, ids=repr)
def test_another_seed_gives_another_assignment(partition):
    one, two = (partition.assign(BALANCED, 20, seed) for seed in (1, 2))
    assert not np.array_equal(one.indices, two.indices)


@pytest.mark.parametrize("partition", KINDS, ids=repr)
def test_numpys_global_generator_is_neither_read_nor_moved(partition):
    np.random.seed(1)
    one = partition.assign(BALANCED, 20, 0)
    after = np.random.random()
    np.random.seed(2)
    assert np.array_equal(one.indices, partition.assign(BALANCED, 20, 0).indices)
    np.random.seed(1)
    assert np.random.random() == after


@pytest.mark.parametrize("partition", KINDS, ids=repr)
def test_any_integer_is_a_seed(partition):
    seen = {partition.assign(BALANCED, 20, seed).indices.tobytes() for seed in (-1, 0, 1, 2**63, 10**30)}
    assert len(seen) == 5


def no_client_differs(values: np.ndarray) -> bool:
    """Of values [seeds, clients]: every client's mean is that of all, up to chance."""
    assert values.std() > 0.4
    gap = values.mean(axis=0) - values.mean()
    return bool(np.abs(gap).max() < 4.5 * values.std() / np.sqrt(len(values)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    [Iid(), Dirichlet(per="client"), Dirichlet(alpha=0.1, per="class"), Shards(), Classes(), Iid(size_ratio=2)],
    ids=repr,
)
def test_a_clients_number_says_nothing_about_its_size(partition):
    labels = np.array([0] * 7 + [1] * 8)
    sizes = np.array([partition.assign(labels, 6, seed).sizes for seed in range(400)])
    assert no_client_differs(sizes)


def kinds_held(partition: Partition, seed: int) -> np.ndarray:
    """Labels that each of 14 clients holds: those served last take what is left, and so hold more."""
    labels = np.repeat(np.arange(20), 7)
    return np.array([len(set(labels[own])) for own in partition.assign(labels, 14, seed)])


@pytest.mark.slow
def test_a_clients_number_says_nothing_about_its_mix():
    assert no_client_differs(np.array([kinds_held(Dirichlet(alpha=0.05, per="client"), seed) for seed in range(300)]))


@pytest.mark.slow
def test_a_clients_weight_says_nothing_about_its_mix():
    """With a ratio of almost 1, large and small clients are of the same size."""
    kinds = []
    for seed in range(300):
        large = Iid(size_ratio=9).assign(np.zeros(140, dtype=int), 14, seed).sizes > 10
        held = kinds_held(Dirichlet(alpha=0.05, per="client", size_ratio=1.001), seed)
        kinds.append([*held[large], *held[~large]])
    assert no_client_differs(np.array(kinds))


@pytest.mark.parametrize(
    "partition", [Iid(), Dirichlet(per="client"), Shards(), Classes(), Dirichlet(alpha=5, per="class")], ids=repr
)
@pytest.mark.parametrize("clients", [20, 21])
def test_the_size_ratio_is_that_of_a_random_half(partition, clients):
    labels = np.repeat(np.arange(10), 6000)
    large = Iid(size_ratio=9).assign(labels, clients, 5).sizes > len(labels) / clients
    assert large.sum() == clients // 2
    sizes = partition.model_copy(update={"size_ratio": 3.0}).assign(labels, clients, 5).sizes
    exact = not isinstance(partition, Classes) and getattr(partition, "per", "client") == "client"
    assert sizes[large].mean() / sizes[~large].mean() == pytest.approx(3, rel=1e-3 if exact else 0.15)
    if exact:
        assert np.ptp(sizes[large]) <= 1
        assert np.ptp(sizes[~large]) <= 1


@pytest.mark.parametrize("partition", KINDS, ids=repr)
def test_more_clients_than_samples_are_refused(partition):
    with pytest.raises(InputError, match="clients must be at most 3, as there are 3 samples; got 4"):
        partition.assign(np.array([0, 1, 2]), 4, 0)


@pytest.mark.parametrize("clients", [0, -1])
def test_no_clients_are_refused(clients):
    with pytest.raises(InputError, match=f"clients must be at least 1; got {clients}"):
        Dirichlet(per="class", min_size=0).assign(BALANCED, clients, 0)


@pytest.mark.parametrize("labels", [np.array([]), np.zeros(3), np.zeros((2, 2), dtype=int)])
def test_labels_that_are_not_a_row_of_integers_are_refused(labels):
    with pytest.raises(InputError, match=r"labels must be one whole number per sample"):
        Iid().assign(labels, 1, 0)


def test_iid_sizes_differ_by_at_most_one_and_labels_do_not_matter():
    assignment = Iid().assign(BALANCED, 7, 3)
    assert set(assignment.sizes) == {857, 858}
    assert np.array_equal(assignment.indices, Iid().assign(BALANCED[::-1], 7, 3).indices)


def test_iid_is_uniform():
    """Each of 4 samples goes to each of 2 clients equally often, in all 6 ways."""
    ways = [tuple(Iid().assign(np.zeros(4, dtype=int), 2, seed)[0]) for seed in range(1200)]
    _, counts = np.unique(ways, axis=0, return_counts=True)
    assert len(counts) == 6
    assert chisquare(counts).pvalue > 1e-4


@given(st.lists(st.integers(0, 4), max_size=30))
def test_assignment_from_owners(owner):
    assignment = Assignment.from_owner(np.array(owner, dtype=np.int64), 5)
    assert [own.tolist() for own in assignment] == [[s for s, o in enumerate(owner) if o == c] for c in range(5)]
    assert assignment.sizes.tolist() == [owner.count(c) for c in range(5)]
    assert assignment.indices.dtype == assignment.offsets.dtype == np.int64


def test_a_clients_samples_are_a_view():
    assignment = Iid().assign(BALANCED, 10, 0)
    assert np.shares_memory(assignment[3], assignment.indices)


@pytest.mark.parametrize("client", [-1, 10])
def test_a_client_that_is_not_there(client):
    with pytest.raises(IndexError, match=f"client {client} of 10"):
        Iid().assign(BALANCED, 10, 0)[client]


@pytest.mark.parametrize("partition", [*KINDS, Shards(shards_per_client=3, size_ratio=2)], ids=repr)
def test_a_field_of_any_partition_round_trips(partition):
    field: TypeAdapter[Partition] = TypeAdapter(AnyPartition)
    assert field.validate_python(partition.model_dump()) == partition
    assert field.validate_json(partition.model_dump_json()) == partition
    assert field.validate_python(partition) == partition


def test_pathological_is_another_name_of_shards():
    assert ALIASES == {"pathological": "shards"}
    field: TypeAdapter[Partition] = TypeAdapter(AnyPartition)
    assert field.validate_python({"kind": "pathological", "shards_per_client": 3}) == Shards(shards_per_client=3)
    assert field.validate_python("pathological") == Shards()
    assert field.validate_python({"size_ratio": 2}) == Iid(size_ratio=2)


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "zipf"},
        {"kind": 3},
        "zipf",
        {"alpha": 1},
        {"kind": "iid", "alpha": 1},
        {"kind": "iid", "size_ratio": 0.5},
        {"kind": "iid", "size_ratio": float("nan")},
        {"kind": "dirichlet", "alpha": 0},
        {"kind": "dirichlet", "alpha": float("inf")},
        {"kind": "dirichlet", "per": "label"},
        {"kind": "dirichlet", "min_size": -1},
        {"kind": "shards", "shards_per_client": 0},
        {"kind": "classes", "classes": 0},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(given):
    with pytest.raises(ValidationError):
        TypeAdapter(AnyPartition).validate_python(given)


def test_every_kind_is_listed_with_its_source():
    assert names() == ("iid", "dirichlet", "shards", "classes", "column")
    for kind in names():
        assert "et al., 20" in describe(kind) or kind == "column"
        assert "\n" not in describe(kind)
    assert describe("pathological") == describe("shards")


def test_an_unknown_kind_is_told_with_all_kinds():
    with pytest.raises(InputError, match=r"partition.kind: 'shard' is not known; did you mean shards\?"):
        describe("shard")
