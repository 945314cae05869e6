from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedkeel import FederatedData, InputError
from fedkeel.data.partition import Shards

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(100, 1, 6, 6)), np.repeat(np.arange(5), 20)


def test_from_arrays_deals_out_every_sample_once() -> None:
    data = FederatedData.from_arrays(X, Y, clients=7, test=(X[:10], Y[:10]), seed=1)
    dealt = torch.cat([data.client(i) for i in range(len(data))])
    assert sorted(dealt.tolist()) == list(range(100))
    assert data.sizes.sum() == 100
    assert (data.classes, data.shape, data.vocabulary) == (5, (1, 6, 6), None)
    assert data.train.x.dtype == torch.float32
    assert data.label_counts().sum(axis=0).tolist() == [20] * 5


@pytest.mark.parametrize("partition", ["pathological", {"kind": "shards"}, Shards()])
def test_partition_by_word_by_dict_and_by_object(partition: object) -> None:
    data = FederatedData.from_arrays(X, Y, clients=5, partition=partition, test=(X, Y))
    assert ((data.label_counts() > 0).sum(axis=1) <= 4).all()


@pytest.mark.slow
def test_arrays_of_any_layout_are_taken() -> None:
    for x in (X[::-1], X.astype(">f4"), np.asfortranarray(X), X.tolist()):
        data = FederatedData.from_clients([(x, Y)], test=(X, Y))
        torch.testing.assert_close(data.train.x, torch.tensor(np.array(x, dtype=np.float32)))


def test_a_share_is_held_out_for_testing() -> None:
    data = FederatedData.from_arrays(np.arange(100.0).reshape(100, 1), Y, clients=5, test=0.3)
    assert (len(data.train.y), len(data.test.y)) == (70, 30)
    assert data.sizes.tolist() == [14] * 5
    assert sorted(torch.cat([data.train.x, data.test.x])[:, 0].tolist()) == list(range(100))
    for x, y in ((data.train.x, data.train.y), (data.test.x, data.test.y)):
        assert y.tolist() == (x[:, 0] // 20).long().tolist()


@pytest.mark.slow
def test_from_clients_keeps_each_clients_own() -> None:
    data = FederatedData.from_clients([(X[:30], Y[:30]), (X[30:35], Y[30:35])], test=(X, Y))
    assert data.sizes.tolist() == [30, 5]
    x, y = data.train_batch(data.client(1))
    torch.testing.assert_close(x, torch.tensor(X[30:35], dtype=torch.float32))
    assert y.tolist() == Y[30:35].tolist()


def test_from_torch_reads_pairs() -> None:
    source = TensorDataset(torch.tensor(X).float(), torch.tensor(Y))
    data = FederatedData.from_torch(source, test=source, clients=3)
    torch.testing.assert_close(data.train.x, torch.tensor(X).float())
    assert data.test.y.tolist() == Y.tolist()
    assert len(FederatedData.from_torch(source, clients=5).test.y) == 20


def test_token_ids_are_asked_for_and_integers_are_features_otherwise() -> None:
    tokens = RNG.integers(0, 50, (40, 8))
    features = FederatedData.from_arrays(tokens, Y[:40], clients=2)
    assert (features.train.x.dtype, features.vocabulary) == (torch.float32, None)
    data = FederatedData.from_arrays(tokens, Y[:40], clients=2, vocabulary="auto")
    assert data.train.x.dtype == torch.int64
    assert data.vocabulary == tokens.max() + 1
    assert FederatedData.from_arrays(tokens, Y[:40], clients=2, vocabulary=99).vocabulary == 99
    assert data.to(torch.float64).train.x.dtype == torch.int64
    wider = FederatedData.from_clients([(tokens, Y[:40])], test=(tokens + 30, Y[:40]), vocabulary="auto")
    assert wider.vocabulary == tokens.max() + 31


def rows(data: FederatedData, part: str, client: int) -> list[float]:
    """The first feature of a client's own rows, which numbers them in these tests."""
    assignment = {"train": data.assignment, "test": data.test_rows, "validation": data.validation_rows}[part]
    assert assignment is not None
    return getattr(data, part).x[assignment[client], 0].tolist()


def test_each_client_holds_out_its_own_rows_in_the_proportions_of_its_classes() -> None:
    x = np.arange(300.0)[:, None]
    y = np.r_[np.repeat([0, 1], [80, 20]), np.repeat([1, 2, 0], [100, 60, 40])]
    data = FederatedData.from_clients([(x[:100], y[:100]), (x[100:], y[100:])], test=0.25, validation=0.1, seed=3)
    own = [set(range(100)), set(range(100, 300))]
    for client in (0, 1):
        parts = [rows(data, part, client) for part in ("train", "test", "validation")]
        assert sorted(chain(*parts)) == sorted(own[client])
        assert data.test_share(client, 0).tolist() == data.test_rows[client].tolist()  # type: ignore[index]
    counts = [np.bincount(y[np.array(rows(data, "test", c), int)], minlength=3).tolist() for c in (0, 1)]
    assert counts == [[20, 5, 0], [10, 25, 15]]
    validated = [np.bincount(y[np.array(rows(data, "validation", c), int)], minlength=3).tolist() for c in (0, 1)]
    assert validated == [[8, 2, 0], [4, 10, 6]]
    again = FederatedData.from_clients([(x[:100], y[:100])], test=0.25, validation=0.1, seed=3)
    assert rows(again, "test", 0) == rows(data, "test", 0)  # whoever else takes part
    other = FederatedData.from_clients([(x[:100], y[:100])], test=0.25, validation=0.1, seed=4)
    assert rows(other, "test", 0) != rows(data, "test", 0)


def test_where_every_client_has_few_rows_some_hold_out_one() -> None:
    data = FederatedData.from_arrays(np.arange(60.0)[:, None], np.arange(60) % 3, clients=40, test=0.2)
    assert (len(data.train.y), len(data.test.y)) == (48, 12)
    assert set(data.sizes.tolist()) <= {1, 2}


def test_clients_bring_their_own_test_rows() -> None:
    x = np.arange(20.0)[:, None]
    y = np.arange(20) % 2
    clients = [((x[:8], y[:8]), (x[8:10], y[8:10])), ((x[10:18], y[10:18]), (x[18:], y[18:]))]
    data = FederatedData.from_clients(clients)
    assert [rows(data, "test", c) for c in (0, 1)] == [[8, 9], [18, 19]]
    assert data.sizes.tolist() == [8, 8]
    assert data.clients_have_tests
    mixed = FederatedData.from_clients([clients[0], (x[10:], y[10:])])
    assert [len(mixed.test_share(c, 0)) for c in (0, 1)] == [2, 0]


def test_a_common_test_set_belongs_to_nobody() -> None:
    data = FederatedData.from_clients([(X, Y)], test=(X, Y))
    assert not data.clients_have_tests
    real = FederatedData.from_clients([(X, Y / 2)], test=(X, Y / 2))
    with pytest.raises(InputError, match="give each client test rows"):
        real.test_share(0, 0)


def test_targets_of_any_kind_are_kept() -> None:
    real = FederatedData.from_arrays(X, Y / 3, clients=2)
    assert (real.train.y.dtype, real.classes) == (torch.float32, 1)
    assert real.to(torch.float64).train.y.dtype == torch.float64
    many = FederatedData.from_arrays(X, np.stack([Y / 3, Y / 5, Y / 7], 1), clients=2)
    assert (tuple(many.train.y.shape[1:]), many.classes) == ((3,), 3)
    column = FederatedData.from_arrays(X, Y[:, None], clients=2)
    assert column.train.y.shape == (80,)
    assert FederatedData.from_arrays(X, Y > 2, clients=2).classes == 2
    tags = FederatedData.from_arrays(Y[:, None].repeat(4, 1), Y[:, None].repeat(4, 1), vocabulary=5, clients=2)
    assert (tuple(tags.train.y.shape[1:]), tags.classes) == ((4,), 5)


def test_a_clients_test_share_has_its_proportions() -> None:
    x = np.zeros((1000, 2))
    y = np.repeat(np.arange(10), 100)
    mine = np.r_[0:60, 100:120, 200:201]  # 60 of class 0, 20 of class 1, one of class 2
    rest = np.setdiff1d(np.arange(1000), mine)
    data = FederatedData.from_clients([(x[mine], y[mine]), (x[rest], y[rest])], test=(x[::2], y[::2]))
    share = data.test_share(0, seed=0)
    assert np.bincount(data.test.y[share], minlength=10).tolist() == [30, 10, 1, 0, 0, 0, 0, 0, 0, 0]
    assert len(set(share.tolist())) == len(share)
    assert torch.equal(share, data.test_share(0, seed=0))
    assert not torch.equal(share, data.test_share(0, seed=1))


def test_augmentation_and_resizing_happen_batch_by_batch() -> None:
    data = FederatedData.from_arrays(X, Y, clients=2, test=(X, Y))
    from dataclasses import replace

    changed = replace(data, augment=True, resize=12)
    assert changed.shape == (1, 12, 12)
    some = torch.arange(50)
    x, _ = changed.train_batch(some, [torch.Generator().manual_seed(0)])
    again, _ = changed.train_batch(some, [torch.Generator().manual_seed(0)])
    other, _ = changed.train_batch(some, [torch.Generator().manual_seed(1)])
    assert x.shape == (50, 1, 12, 12)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    tested, _ = changed.test_batch(slice(0, 50))
    expected = torch.nn.functional.interpolate(data.test.x[:50], size=(12, 12), mode="bilinear", align_corners=False)
    torch.testing.assert_close(tested, expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FederatedData.from_clients([], test=(X, Y)), ["clients", "at least one pair"]),
        (lambda: FederatedData.from_arrays(X, Y[:50]), ["one target per sample"]),
        (lambda: FederatedData.from_arrays(X, Y[:50], test=(X, Y)), ["100", "50"]),
        (lambda: FederatedData.from_arrays(X, Y - 1, test=(X, Y)), ["-1"]),
        (lambda: FederatedData.from_arrays(X, Y / 2, partition="dirichlet"), ["partition.kind", "class label", "iid"]),
        (lambda: FederatedData.from_arrays(X, np.full(100, np.nan)), ["y", "NaN"]),
        (lambda: FederatedData.from_arrays(X, np.array(["cat"] * 100)), ["y", "'cat'", "np.unique"]),
        (lambda: FederatedData.from_clients([(X, Y), (X, Y / 2)]), ["y", "whole", "real"]),
        (lambda: FederatedData.from_clients([((X, Y), (X, Y))], test=0.2), ["test", "keep one"]),
        (lambda: FederatedData.from_clients([X]), ["clients[0]", "pair"]),
        (lambda: FederatedData.from_clients([(X, Y), (X, Y[:3])]), ["clients[1]", "one target per sample"]),
        (lambda: FederatedData.from_clients([(X[:1], Y[:1])], test=0.1), ["test", "too few"]),
        (lambda: FederatedData.from_clients([(X, Y)], test=0.6, validation=0.5), ["validation", "nothing to train on"]),
        (lambda: FederatedData.from_clients([(X, Y)], validation=2), ["validation", "between 0 and 1"]),
        (lambda: FederatedData.from_arrays(X, Y, test=1.0), ["test", "1.0"]),
        (lambda: FederatedData.from_arrays(X, Y, test=1), ["test", "1"]),
        (lambda: FederatedData.from_arrays(X, Y, vocabulary="auto"), ["token ids", "fractions"]),
        (lambda: FederatedData.from_arrays(Y[:, None], Y, vocabulary=3), ["token ids", "0 to 4", "0 to 2"]),
        (lambda: FederatedData.from_arrays(Y[:, None] - 1, Y, vocabulary="auto"), ["token ids", "-1"]),
        (lambda: FederatedData.from_arrays(X, Y, test=(X[:, :, :3], Y)), ["(1, 3, 6)", "(1, 6, 6)"]),
        (lambda: FederatedData.from_arrays(np.where(X > 0, X, np.nan), Y), ["NaN"]),
        (lambda: FederatedData.from_arrays(X * 1e300, Y), ["float32 cannot hold"]),
        (lambda: FederatedData.from_arrays(X + 1j, Y), ["complex"]),
        (lambda: FederatedData.from_arrays([["a"]], [0]), ["x", "text"]),
        (lambda: FederatedData.from_torch(iter([(X[0], 0.7)])), ["dataset", "map-style"]),
        (lambda: FederatedData.from_torch([(X[0], "cat")] * 10), ["dataset", "pairs of numbers"]),
        (lambda: FederatedData.from_arrays(X, Y, clients=2.5), ["clients", "2.5"]),
        (lambda: FederatedData.from_arrays(X, Y, clients=101), ["clients", "101"]),
        (lambda: FederatedData.from_arrays(X, Y, partition="shard"), ["partition.kind", "did you mean shards"]),
        (lambda: FederatedData.from_arrays(X, Y, partition={"alpha": 1}), ["partition.alpha", "setting of iid"]),
        (lambda: FederatedData.from_arrays(X, Y, partition=3), ["partition", "3"]),
        (lambda: FederatedData.from_clients([(X, Y), (X[:, :, :3], Y)], test=(X, Y)), ["clients", "one shape"]),
    ],
)  # fmt: skip
def test_bad_data_is_refused(make: object, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        make()  # type: ignore[operator]
    for word in words:
        assert word in str(caught.value)
