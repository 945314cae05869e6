"""Torch data sets as users hand them over."""

from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import FederatedData, InputError


class Numbered(torch.utils.data.Dataset[Any]):
    """Ten samples; what their targets are, is the test's."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        return torch.full((3,), float(place)), self.target(place)


@pytest.mark.parametrize(
    ("target", "shape", "real"),
    [
        (lambda i: i % 2, (), False),
        (lambda i: i % 2 == 0, (), False),
        (lambda i: np.int64(i % 2), (), False),
        (lambda i: torch.tensor(i % 2), (), False),
        (lambda i: i / 2, (), True),
        (lambda i: [i % 2, 1], (2,), False),
        (lambda i: np.array([i / 2, 1, 2]), (3,), True),
    ],
)
def test_targets_of_any_kind(target, shape, real):
    data = FederatedData.from_torch(Numbered(target), clients=2)
    assert data.train.y.shape[1:] == shape
    assert data.train.y.is_floating_point() == real
    for x, y in zip(data.train.x, data.train.y, strict=True):
        assert y.tolist() == pytest.approx(np.asarray(target(int(x[0])), float).tolist())


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.ones(3), 0


class LongStream(Stream):
    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("stream", [Stream(), LongStream(), iter([])])
def test_streams_are_refused(stream):
    with pytest.raises(InputError, match=r"must be a map-style torch Dataset of .*; collect the samples"):
        FederatedData.from_torch(stream)


@pytest.mark.parametrize("target", [lambda _: "cat", lambda i: [0] * i, lambda _: None])
def test_targets_that_are_none_are_refused(target):
    with pytest.raises(InputError, match=r"dataset must give \(x, y\) pairs of numbers"):
        FederatedData.from_torch(Numbered(target))


def test_names_as_targets_are_answered_once() -> None:
    with pytest.raises(InputError, match=r"^y must hold numbers; got text such as 'no'; np\.unique\(y, return_inverse"):
        FederatedData.from_arrays(np.zeros((2, 1)), np.array(["no", "yes"]))
