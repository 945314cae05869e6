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
    data = FederatedData.from_arrays(np.arange(100.0).reshape(100, 1), Y, clients=4, test=0.3)
    assert (len(data.train.y), len(data.test.y)) == (70, 30)
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
    assert len(FederatedData.from_torch(source, clients=3).test.y) == 20


def test_token_ids_stay_integers() -> None:
    tokens = RNG.integers(0, 50, (40, 8))
    data = FederatedData.from_arrays(tokens, Y[:40], clients=2)
    assert data.train.x.dtype == torch.int64
    assert data.vocabulary == tokens.max() + 1
    assert FederatedData.from_arrays(tokens, Y[:40], clients=2, vocabulary=99).vocabulary == 99
    assert data.to(torch.float64).train.x.dtype == torch.int64
    wider = FederatedData.from_clients([(tokens, Y[:40])], test=(tokens + 30, Y[:40]))
    assert wider.vocabulary == tokens.max() + 31


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
        (lambda: FederatedData.from_clients([], test=(X, Y)), ["clients", "empty"]),
        (lambda: FederatedData.from_arrays(X, Y[:50]), ["labels"]),
        (lambda: FederatedData.from_arrays(X, Y[:50], test=(X, Y)), ["100", "50"]),
        (lambda: FederatedData.from_arrays(X, Y - 1, test=(X, Y)), ["-1"]),
        (lambda: FederatedData.from_arrays(X, Y.astype(float)), ["y", "float64", "integers"]),
        (lambda: FederatedData.from_arrays(X, Y, test=1.0), ["test", "1.0"]),
        (lambda: FederatedData.from_arrays(X, Y, test=1), ["test", "1"]),
        (lambda: FederatedData.from_arrays(X.astype(int), Y, test=(X, Y)), ["float32", "int64"]),
        (lambda: FederatedData.from_arrays(Y[:, None], Y, vocabulary=3), ["token ids", "0 to 4", "0 to 2"]),
        (lambda: FederatedData.from_arrays(Y[:, None] - 1, Y), ["token ids", "-1"]),
        (lambda: FederatedData.from_arrays(X, Y, test=(X[:, :, :3], Y)), ["(1, 3, 6)", "(1, 6, 6)"]),
        (lambda: FederatedData.from_arrays(np.where(X > 0, X, np.nan), Y), ["NaN"]),
        (lambda: FederatedData.from_arrays(X * 1e300, Y), ["float32 cannot hold"]),
        (lambda: FederatedData.from_arrays(X + 1j, Y), ["complex128"]),
        (lambda: FederatedData.from_arrays([["a"]], [0]), ["x", "not an array of numbers"]),
        (lambda: FederatedData.from_torch([(X[0], 0.7)] * 10), ["y", "integers"]),
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
