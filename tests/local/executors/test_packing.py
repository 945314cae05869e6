"""Orders on their way to a worker and back."""

from dataclasses import fields
from typing import Any

import torch

from fedkeel.local.executors.packing import pack, unpack
from fedkeel.methods.job import Fresh
from fedkeel.wire.orders import Order

W, B, LR = torch.randn(5), torch.randn(2, dtype=torch.float64), torch.rand(3)


def orders() -> list[Order]:
    plain = Order(1, 4, 2, 3, W, B, LR, {"c": W}, {})
    own = Order(2, 7, 2, 3, W + 1, B, LR[:2], {"c": W}, {"c": torch.ones(5), "n": torch.tensor([3])}, survey=True)
    merging = Order(3, 9, 2, 3, W, B, LR, {}, {}, wave=5, version=6, slot=1, fresh=Fresh(W * 2, B * 2, 8))
    return [plain, own, merging]


def equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Order | Fresh):
        return all(equal(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return bool(one == other)


def test_every_field_comes_back_from_copies_of_the_tensors() -> None:
    sent = orders()
    packed, tensors = pack(sent)
    got = unpack(packed, [tensor.clone() for tensor in tensors])
    assert all(equal(got[row], sent[row]) for row in (2, 0, 1))
    assert not equal(got[0], sent[1])


def test_each_tensor_travels_once_and_not_in_the_bytes() -> None:
    sent = orders() * 100
    large = torch.zeros(10_000)
    for each in sent:
        each.start = large
    packed, tensors = pack(sent)
    assert [sum(tensor is each for each in tensors) for tensor in (large, W, B, LR)] == [1, 1, 1, 1]
    assert len({id(tensor) for tensor in tensors}) == len(tensors)
    assert len(packed) < 30_000
    got = unpack(packed, tensors)
    assert got[0].start is got[299].start is large
