"""Shared memory that is lent and comes back."""

import gc
import multiprocessing

import pytest
import torch

from fedkeel.local.executors.memory import Lender, Parcel, Reader, keep_freed


def test_memory_may_be_kept_again_and_again() -> None:
    for _ in range(3):
        keep_freed()
        assert torch.ones(1 << 20).sum() == 1 << 20


def test_tensors_keep_their_shapes_and_types_in_another_process() -> None:
    lender = Lender()
    wanted = {
        "a": ((3, 5), torch.float64),
        "b": ((7,), torch.bool),
        "c": ((0, 4), torch.float32),
        "d": ((2,), torch.int64),
    }
    parcel, here = lender.lend(wanted)
    assert {name: (tuple(t.shape), t.dtype) for name, t in here.items()} == wanted
    here["a"].copy_(torch.arange(15.0).view(3, 5))
    here["b"].fill_(True)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_double, args=(parcel,))
    process.start()
    process.join()
    assert process.exitcode == 0
    torch.testing.assert_close(here["a"], 2 * torch.arange(15.0, dtype=torch.float64).view(3, 5))
    assert here["b"].all()
    assert here["d"].tolist() == [4, 4]


def _double(parcel: Parcel) -> None:
    there = Reader().tensors(parcel)
    there["a"].mul_(2)
    there["d"].fill_(4)


@pytest.mark.slow
def test_a_block_is_lent_again_only_when_nobody_uses_it() -> None:
    lender = Lender()
    first, tensors = lender.lend({"a": ((100,), torch.float32)})
    row = tensors["a"][3:4]
    row.fill_(5)
    del tensors
    gc.collect()
    second, others = lender.lend({"a": ((100,), torch.float32)})
    others["a"].zero_()
    assert second.path != first.path
    assert row.item() == 5
    del row
    gc.collect()
    third, _ = lender.lend({"a": ((60,), torch.float32)})
    assert third.path == first.path


def test_what_is_out_when_the_lender_closes_stays_valid() -> None:
    lender = Lender()
    _, tensors = lender.lend({"a": ((1000,), torch.float32)})
    tensors["a"].fill_(3)
    lender.close()
    assert tensors["a"].sum() == 3000
    lender.lend({"a": ((10,), torch.float32)})[1]["a"].zero_()
    assert tensors["a"].sum() == 3000
