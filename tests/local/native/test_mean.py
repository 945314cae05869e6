"""The exact mean of many clients' weights: the kernel of every instruction set has the bits of PyTorch's operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.local import mean
from fedkeel.local.native import network
from tests.helpers.chains import EVERY_ISA, kernels

SCALE = 2.0**26


@EVERY_ISA
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(1, 40),
    size=st.sampled_from([1, 3, 8, 17, 511, 512, 513, 1030]),
    power=st.integers(-20, 9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    threads=st.integers(1, 3),
)
def test_kernel_and_pytorch_have_the_same_bits(
    isa: str, seed: int, k: int, size: int, power: int, dtype: torch.dtype, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    wide = torch.from_numpy(rng.normal(size=(k, 2 * size)) * 10.0**power).to(dtype)
    shares = torch.from_numpy(rng.dirichlet(np.ones(k)))
    for w in (wide[:, :size], wide[:, ::2], wide[:1, :size].expand(k, -1)):  # rows that lie apart, columns, one row
        want = mean._in_pytorch(w, shares * SCALE)
        found = network.exact_mean(kernels(isa), w, shares * SCALE, threads)
        if found is None:
            assert float((w.double().abs() * shares[:, None]).max()) >= 2.0**25
        else:
            assert torch.equal(found, want)
        assert torch.allclose(want.sum(0), shares @ w.double(), rtol=1e-12, atol=1e-16 + float(w.abs().max()) * 1e-15)


@EVERY_ISA
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1e30])
def test_what_the_kernel_cannot_do_is_left_to_pytorch(isa: str, wrong: float) -> None:
    w, shares = torch.ones(3, 600), torch.full((3,), 1 / 3, dtype=torch.float64)
    w[1, 599] = wrong
    assert network.exact_mean(kernels(isa), w, shares * SCALE, 2) is None
    found = mean.exact_mean(w, shares).sum(0)
    assert found[0] == pytest.approx(1)
    assert not abs(float(found[599])) < 1e29


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.arange(12.0).view(3, 4)
    shares = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    with_kernels = mean.exact_mean(w, shares)
    monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    assert torch.equal(mean.exact_mean(w, shares), with_kernels)
    assert with_kernels.sum(0).tolist() == [3.0, 4.0, 5.0, 6.0]
