"""Gradients by the native kernels against autograd in float64, one client at a time, on every instruction set."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkeel.errors import FedkeelError
from fedkeel.params import Layout
from tests.helpers.chains import (
    EVERY_ISA,
    ISAS,
    TOGETHER,
    logits,
    loss_and_gradient,
    modules,
    network,
    numbers,
    sizes_of,
    some,
    stack,
    whole,
)
from tests.helpers.processes import ended, forked

Module = tuple[nn.Sequential, tuple[int, ...]]


def close(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Row by row, against the norm."""
    return bool(((got.double() - expected).norm(dim=-1) <= tolerance * (expected.norm(dim=-1) + 1e-3)).all())


def check(
    module: nn.Module,
    shape: tuple[int, ...],
    given: tuple[Tensor, Tensor, Tensor],
    sizes: list[int],
    aside: bool,
    tolerance: float = 1e-10,
    dtype: torch.dtype = torch.float64,
    isas: tuple[str, ...] = ISAS,
) -> None:
    """Losses and gradients of these clients, with every base and in place, in memory side by side or `aside`."""
    w, x, y = (each.to(dtype) if each.is_floating_point() else each for each in given)
    k = len(w)
    found = [loss_and_gradient(module, w[c].double(), x[c, :n].double(), y[c, :n]) for c, n in enumerate(sizes)]
    scale = torch.linspace(-1.5, 0.5, k, dtype=torch.float64)
    gradient = torch.stack([scale[c] * g for c, (_, g) in enumerate(found)])
    elsewhere = torch.randn(w.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    x, y = some(x, aside), some(y, aside)
    for isa in isas:
        net = network(module, shape, isa, dtype)
        for case in ("null", "another", "in place", "into w", "onto w", "onto w from another"):
            at, base = stack(w, aside), stack(elsewhere, aside)
            out = stack(torch.full_like(w, 3), aside)
            if case in ("null", "into w"):
                base = None  # type: ignore[assignment]
            elif case == "in place":
                base = out = stack(elsewhere, aside)
            elif case == "onto w":
                base = at
            if "w" in case:
                out = at
            start = {"in place": elsewhere, "another": elsewhere, "onto w": w, "onto w from another": elsewhere}
            expected = gradient + start.get(case, torch.zeros_like(w)).double()
            losses = net.gradients(at, x, y, sizes_of(sizes), scale, out, base)
            moved = out.double() - (expected - gradient)
            assert close(moved, gradient, tolerance), (isa, case)
            for c, (each, _) in enumerate(found):
                assert close(losses[c, : sizes[c]], each, tolerance * 10), (isa, case)
            if aside:  # nothing was written beside the rows
                around = out._base
                assert around is not None
                assert bool((around[:, 0] == 7.5).all())
                assert bool((around[:, -4:] == 7.5).all())
            if out is not at:
                assert torch.equal(at, w)

            if case == "null":
                named = torch.full_like(w, 3)
                among, labels, which = numbered(x, y)
                again = net.gradients(w, among, labels, sizes_of(sizes), scale, named, None, which)
                assert torch.equal(named, out), isa
                assert torch.equal(again, losses), isa


def numbered(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same samples in another order, and which of them belongs where."""
    count = y.numel()
    places = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    among, labels = x.reshape(count, *x.shape[2:]), y.reshape(count)
    which = torch.empty_like(places).index_copy_(0, places, torch.arange(count))
    return among[places].contiguous(), labels[places].contiguous(), which.view(y.shape)


SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64, 65, 70, 130]), min_size=1, max_size=3)


@given(modules(), SIZES.filter(any), st.booleans(), st.integers(0, 1000))
def test_random_chains(made: Module, sizes: list[int], aside: bool, seed: int) -> None:
    module, shape = made
    check(module, shape, numbers(module, shape, len(sizes), max(sizes), seed), sizes, aside)


@pytest.mark.slow
@given(modules(), SIZES.filter(any), st.booleans(), st.integers(0, 1000))
@settings(max_examples=50)
def test_random_chains_in_float32(made: Module, sizes: list[int], aside: bool, seed: int) -> None:
    module, shape = made
    given_ = numbers(module, shape, len(sizes), max(sizes), seed)
    check(module, shape, given_, sizes, aside, 2e-5, torch.float32)


@pytest.mark.slow
@given(modules(), SIZES.filter(any), st.integers(0, 1000))
@settings(max_examples=60)
def test_equal_pixels_and_zeros(made: Module, sizes: list[int], seed: int) -> None:
    """Whole numbers, so that pools have to choose among equals and ReLUs stand at zero: the first of them, and no."""
    module, shape = made
    check(module, shape, whole(module, shape, len(sizes), max(sizes), seed), sizes, False)


def lenet(classes: int = 4) -> nn.Sequential:
    """Two convolutions with pools and ReLUs in both orders, one without a pool, an average, two linear layers."""
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(5, 7, 2), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, classes),
    ).double()  # fmt: skip


SHAPE = (2, 6, 6)


@pytest.mark.slow
@EVERY_ISA
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("k", range(1, 8))
def test_every_filter_with_every_padding(k: int, dtype: torch.dtype, isa: str) -> None:
    """Behind another convolution, so that gradients go through it; on images of odd, even and tiny sides."""
    for pad in range(k + 2):
        for height, width in ((1, 1), (2, 3), (5, 4), (9, 9)):
            rows, columns = height + 2 * pad - k + 1, width + 2 * pad - k + 1
            if min(rows, columns) < 1:
                continue
            pool = [nn.MaxPool2d(2)] if min(rows, columns) > 1 else []
            features = 3 * rows * columns if not pool else 3 * (rows // 2) * (columns // 2)
            layers = [nn.Conv2d(1, 2, 1), nn.Conv2d(2, 3, k, padding=pad), *pool, nn.Flatten(), nn.Linear(features, 3)]
            module, shape = nn.Sequential(*layers).double(), (1, height, width)
            tolerance = 1e-10 if dtype == torch.float64 else 2e-5
            check(module, shape, numbers(module, shape, 2, 5, 10 * k + pad), [5, 3], False, tolerance, dtype, (isa,))


@EVERY_ISA
def test_the_first_of_equal_pixels_is_taken(isa: str) -> None:
    """A filter of 1x1 hands the pixels on; its gradient says which of them the pool has taken."""
    module = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)).double()
    inner = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), *module).double()
    for images in ([[1, 1], [1, 1]], [[0, 2], [2, 2]], [[0, 1], [2, 2]], [[-1, -1], [-1, 0]], [[-1, -2], [-1, -1]]):
        x = torch.tensor(images, dtype=torch.float64).repeat(2, 2)[None, None, None]
        w = torch.tensor([[1.0, 1.0, *torch.arange(8).tolist(), 0.5, 0.0]], dtype=torch.float64)
        check(inner, (1, 4, 4), (w, x, torch.zeros(1, 1, dtype=torch.int64)), [1], False, isas=(isa,))


@EVERY_ISA
def test_a_relu_at_zero_hands_nothing_back(isa: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    w = torch.tensor([[1.0, -1, 1, 1, 0, 0, 1, -1, 1, 1, 0, -2, 1, 2, 3, 4, 0, 0]], dtype=torch.float64)
    x = torch.ones(1, 1, 2, dtype=torch.float64)
    g = network(module, (2,), isa).gradients(
        w, x, torch.tensor([[0]]), sizes_of([1]), torch.ones(1, dtype=torch.float64), out := torch.empty_like(w)
    )
    assert bool(g.isfinite().all())
    assert torch.equal(out[0, :4] == 0, torch.tensor([True] * 4))
    torch.testing.assert_close(out[0], loss_and_gradient(module, w[0], x[0], torch.tensor([0]))[1])


@EVERY_ISA
@pytest.mark.parametrize("classes", [1, 2, 12])
def test_equal_logits(classes: int, isa: str) -> None:
    module, shape = lenet(classes), SHAPE
    w, x, y = numbers(module, shape, 2, 3, 0)
    w[:, Layout.of(module).parameters[-2].start :] = 0.25
    check(module, shape, (w, x, y), [3, 2], False, isas=(isa,))
    hits, losses = network(module, shape, isa).score(w[0], x[0], y[0], None, 3)
    assert hits.tolist() == [int((y[0] == 0).sum())]  # PyTorch says the first class as well
    assert logits(module, w[0], x[0]).argmax(1).tolist() == [0, 0, 0]
    np.testing.assert_allclose(losses, [3 * np.log(classes)], rtol=1e-12, atol=1e-12)


@EVERY_ISA
def test_large_logits_neither_overflow_nor_vanish(isa: str) -> None:
    module = nn.Linear(1, 3).double()
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-5)):
        for far in (30.0, 80.0, 87.0, 95.0, 200.0, 1000.0):
            w = torch.tensor([[far, 0.0, -far, 0.5, 0.25, 0.0]], dtype=torch.float64)
            x, y = torch.ones(1, 3, 1, dtype=torch.float64), torch.tensor([[0, 1, 2]])
            check(module, (1,), (w, x, y), [3], False, tolerance, dtype, (isa,))


@EVERY_ISA
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("where", ["data", "filter", "bias", "head"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_not_hidden(value: float, where: str, dtype: torch.dtype, isa: str) -> None:
    """Where autograd finds what is not finite, so do the kernels; and the clients beside are as they would be."""
    module = lenet()
    w, x, y = numbers(module, SHAPE, 3, 20, 3)
    places = {part.name: part.start for part in Layout.of(module).parameters}
    if where == "data":
        x[1, 4, 1, 2, 2] = value
    else:
        w[1, places[{"filter": "0.weight", "bias": "3.bias", "head": "9.weight"}[where]] + 2] = value
    w, x = w.to(dtype), x.to(dtype)
    net = network(module, SHAPE, isa, dtype)
    out = torch.empty_like(w)
    scale = torch.ones(3, dtype=torch.float64)
    losses = net.gradients(w, x, y, sizes_of([20, 20, 20]), scale, out)
    expected = loss_and_gradient(module.to(dtype), w[1], x[1], y[1])
    assert bool(expected[1].isfinite().all()) == (where == "bias" and value == -torch.inf)  # which a ReLU makes 0
    for got, theirs in zip((losses[1], out[1]), expected, strict=True):
        assert not bool((got.isfinite() & ~theirs.isfinite()).any())
    w[1], x[1] = 0, 0
    clean = torch.empty_like(w)
    again = network(module, SHAPE, isa, dtype).gradients(w, x, y, sizes_of([20, 20, 20]), scale, clean)
    for c in (0, 2):  # the one before it, and the one that uses the same memory after it
        assert torch.equal(out[c], clean[c])
        assert torch.equal(losses[c], again[c])


@EVERY_ISA
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("place", range(4))
def test_a_pixel_that_is_not_a_number_wins_in_its_pool(place: int, relu: bool, isa: str) -> None:
    """Wherever it is among the four, beside larger ones and smaller ones."""
    layers = [nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), *([nn.ReLU()] if relu else []), nn.Flatten(), nn.Linear(1, 2)]
    w, x, y = numbers(nn.Sequential(*layers).double(), (1, 2, 2), 1, 2, 0)
    x[0, 1].view(-1)[place] = torch.nan
    out = torch.empty_like(w)
    net = network(nn.Sequential(*layers).double(), (1, 2, 2), isa)
    losses = net.gradients(w, x, y, sizes_of([2]), torch.ones(1, dtype=torch.float64), out)
    assert losses[0].isnan().tolist() == [False, True]
    assert bool(out.isnan().all())


@EVERY_ISA
def test_a_mini_batch_that_is_not_filled_up_has_nothing_that_is_not_there(isa: str) -> None:
    """Where there is no sample, nothing may overflow: without the sample's -1, the second filter would."""
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(1, 2))
    w = torch.tensor([[1e200, 1e200, 1e200, 0.5, 1.0, 0.0, 1.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
    x, y = torch.full((1, 3, 1, 1, 1), -1, dtype=torch.float64), torch.tensor([[0, 1, 1]])
    out = torch.empty_like(w)
    losses = network(module.double(), (1, 1, 1), isa).gradients(
        w, x, y, sizes_of([3]), torch.ones(1, dtype=torch.float64), out
    )
    each, gradient = loss_and_gradient(module.double(), w[0], x[0], y[0])
    torch.testing.assert_close(losses[0], each)
    torch.testing.assert_close(out[0], gradient)


@EVERY_ISA
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_clients_bits_depend_on_nothing_beside_it(dtype: torch.dtype, isa: str) -> None:
    """Neither on the stack, nor on where things lie, nor on what the memory was used for, nor on threads."""
    module, sizes = lenet(), [3, TOGETHER + 6, 0, 17, 64, 1]
    k, b = len(sizes), max(sizes)
    w, x, y = (each.to(dtype) if each.is_floating_point() else each for each in numbers(module, SHAPE, k, b, 1))
    scale = torch.linspace(0.5, 1, k, dtype=torch.float64)
    out = torch.empty_like(w)
    losses = network(module, SHAPE, isa, dtype).gradients(w, x, y, sizes_of(sizes), scale, out)
    one = network(module, SHAPE, isa, dtype)
    for c in range(k):  # alone, where the workspace grows and is then too large
        alone = torch.empty_like(w[:1])
        part = max(1, sizes[c])
        some_losses = one.gradients(
            w[c : c + 1], x[c : c + 1, :part], y[c : c + 1, :part], sizes_of([sizes[c]]), scale[c : c + 1], alone
        )
        assert torch.equal(alone[0], out[c])
        assert torch.equal(some_losses[0, : sizes[c]], losses[c, : sizes[c]])
    for threads in (2, 4, 9):
        shared, where = torch.empty_like(w), stack(w, True)
        many = network(module, SHAPE, isa, dtype, threads)
        again = many.gradients(where, some(x, True), some(y, True), sizes_of(sizes), scale, shared)
        assert torch.equal(shared, out)
        for c, n in enumerate(sizes):
            assert torch.equal(again[c, :n], losses[c, :n])


@EVERY_ISA
def test_clients_may_start_from_one_vector(isa: str) -> None:
    module = lenet()
    w, x, y = numbers(module, SHAPE, 3, 5, 1)
    args = x, y, sizes_of([5, 2, 4]), torch.ones(3, dtype=torch.float64)
    shared, apart = torch.empty_like(w), torch.empty_like(w)
    network(module, SHAPE, isa).gradients(w[:1].expand(3, -1), *args, shared, w[:1].expand(3, -1))
    network(module, SHAPE, isa).gradients(w[:1].repeat(3, 1), *args, apart, w[:1].repeat(3, 1))
    assert torch.equal(shared, apart)
    turned = torch.empty_like(w)
    network(module, SHAPE, isa).gradients(w[:1].repeat(3, 1).T.contiguous().T, *args, turned, w[:1].expand(3, -1))
    assert torch.equal(turned, shared)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how large this process is, Linux says")
def test_without_threads_from_the_system_the_work_is_done_all_the_same(tmp_path: Path) -> None:
    """In a process that may not grow by the stack of one; others that were used before are few."""
    module, k = lenet(), 40
    w, x, y = numbers(module, SHAPE, k, 2, 1)
    net, one = network(module, SHAPE, threads=k), network(module, SHAPE)
    for each in (net, one):
        each._space(2)
    out, expected, scale = torch.empty_like(w), torch.empty_like(w), torch.ones(k, dtype=torch.float64)
    one.gradients(w, x, y, sizes_of([2] * k), scale, expected)

    def work() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (4 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        net.gradients(w, x, y, sizes_of([2] * k), scale, out)
        assert torch.equal(out, expected)

    log = tmp_path / "log"
    assert ended(forked(work, log)) == 0, log.read_text()


def test_what_does_not_fit_is_refused() -> None:
    """Before any pointer is handed over."""
    module = lenet()
    w, x, y = numbers(module, SHAPE, 2, 3, 1)
    net, sizes, scale = network(module, SHAPE), sizes_of([3, 3]), torch.ones(2, dtype=torch.float64)
    for bad in (
        (w.float(), x, y, w),
        (w[:1], x, y, w),
        (w[:, 1:], x, y, w),
        (w, x.float(), y, w),
        (w, x, y.int(), w),
        (w, x[..., 1:], y, w),
        (w, x[:, 1:], y, w),
        (w, x, y, w.float()),
        (w, x, y, w[:, 1:]),
    ):
        with pytest.raises(FedkeelError, match="of native training must"):
            net.gradients(bad[0], bad[1], bad[2], sizes, scale, bad[3].clone())
        with pytest.raises(FedkeelError, match="of native training must"):
            net.gradients(w, x, y, sizes, scale, w.clone(), w.float())
    for counts in ([4, 3], [3]):
        with pytest.raises(AssertionError):
            net.gradients(w, x, y, sizes_of(counts), scale, w.clone())
