"""Shared memory that is lent and comes back."""

import ctypes
import gc
import multiprocessing
import subprocess
import sys

import pytest
import torch

from fedkeel.local.executors.memory import Lender, Parcel, Reader


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 or later tells")
def test_memory_that_is_freed_is_kept() -> None:
    """In a process of its own, where nobody has asked for that before; twice, as every executor asks for it."""
    code = """if True:
        import ctypes, sys
        from fedkeel.local.executors.memory import keep_freed
        for _ in range(int(sys.argv[1])):
            keep_freed()
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        libc.malloc.argtypes = [ctypes.c_size_t]
        class Info(ctypes.Structure):
            _fields_ = [(f"n{i}", ctypes.c_size_t) for i in range(10)]  # of which the ninth are bytes that are free
        libc.mallinfo2.restype = Info
        before = libc.mallinfo2().n8
        blocks = [libc.malloc(24 << 20) for _ in range(3)]
        for each in blocks:
            libc.free(each)
        print(libc.mallinfo2().n8 - before)
    """
    without, kept = (
        int(subprocess.run([sys.executable, "-c", code, times], check=True, capture_output=True, text=True).stdout)
        for times in ("0", "2")
    )
    assert without < 24 << 20
    assert kept > 2 * 24 << 20


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
