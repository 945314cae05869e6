"""The kernels, called with tensors: what they are given is checked here, but for labels, which the data has checked."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.errors import FedkeelError
from fedkeel.local.gradients.chain import Layer
from fedkeel.local.gradients.jobs import Jobs, Outcomes
from fedkeel.local.native.library import Library
from fedkeel.params import Layout

_KINDS = {"convolution": 0, "linear": 1, "average": 2}
_NUMBERS = ("kind", "inputs", "height", "width", "outputs", "k", "pad", "pool", "relu")
_LAYER = np.dtype([*((name, np.int32) for name in _NUMBERS), ("weight", np.int64), ("bias", np.int64)], align=True)
_JOB = np.dtype(
    [
        *((name, np.uintp) for name in ("start", "w", "order")),
        *((name, np.int64) for name in ("samples", "next")),
        *((name, np.uintp) for name in ("rates", "offset", "anchor", "first_last", "first_past", "last", "past")),
        *((name, np.float64) for name in ("share", "pull", "ascent", "keep", "gain", "loss")),
        *((name, np.int64) for name in ("seen", "steps", "each")),
        *((name, np.int32) for name in ("batch", "finite", "late")),
    ],
    align=True,
)
"""`fk_layer` and `fk_job` of kernels/fedkeel.h."""


class _Local(ctypes.Structure):
    """`fk_local`"""

    _fields_ = (
        ("mask", ctypes.c_void_p),
        ("decay", ctypes.c_double),
        ("clip", ctypes.c_double),
        ("momentum", ctypes.c_double),
    )


class Network:
    """A chain of layers for one type of numbers, with a workspace for each thread that grows with the mini-batches."""

    def __init__(
        self, library: Library, layers: Sequence[Layer], layout: Layout, dtype: torch.dtype, threads: int
    ) -> None:
        self._functions = _functions(library)
        self._dtype, self._threads, self._size = dtype, threads, layout.size
        starts = {part.name: part.start for part in layout.parameters} | {None: -1}
        self._layers = np.zeros(len(layers), _LAYER)
        for row, layer in zip(self._layers, layers, strict=True):
            row["kind"] = _KINDS[layer.kind]
            for name in _NUMBERS[1:]:
                row[name] = getattr(layer, name)
            row["weight"], row["bias"] = starts[layer.weight], starts[layer.bias]
        self._sample = layers[0].inputs * layers[0].height * layers[0].width
        self._batch = 0
        self._spaces: ctypes.Array[ctypes.c_void_p] | None = None

    def _space(self, batch: int) -> ctypes.Array[ctypes.c_void_p]:
        """Workspaces for mini-batches of this size."""
        if self._spaces is None or batch > self._batch:
            new, free = self._functions.fk_new, self._functions.fk_free
            count, size, itemsize = len(self._layers), self._size, self._dtype.itemsize
            made = [new(self._layers.ctypes.data, count, batch, size, itemsize) for _ in range(self._threads)]
            spaces = (ctypes.c_void_p * self._threads)(*made)
            weakref.finalize(spaces, _free_all, free, made)
            if not all(made):
                raise MemoryError(
                    f"not enough memory for native mini-batches of {batch}, or layers do not fit together"
                )
            self._batch, self._spaces = batch, spaces
        return self._spaces

    def gradients(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        sizes: NDArray[np.int64],
        scale: Tensor,
        out: Tensor,
        base: Tensor | None = None,
        which: Tensor | None = None,
    ) -> Tensor:
        """out [k, D] <- base - or 0 - plus scale [k] times the gradient of each client's summed losses [k, b].

        The samples are x [k, b, ...] and y [k, b], or those that `which` [k, b] names among x [n, ...] and y [n].
        """
        self._check_samples(x, y)
        if which is None:
            which = torch.arange(y.numel()).view(y.shape)
        assert which.dtype == torch.int64
        k, b = which.shape
        self._check_weights(k, w, out, *([] if base is None else [base]))
        w = w if w.stride(1) == 1 else w.contiguous()
        if base is not None and base.stride(1) != 1:
            base = base.contiguous()
        x, y, which = x.contiguous(), y.contiguous(), which.contiguous()
        losses = torch.zeros(k, b, dtype=w.dtype)  # who has fewer samples leaves zeros
        scale = scale.double().contiguous()
        sizes = np.ascontiguousarray(sizes, dtype=np.int64)
        assert len(sizes) == len(scale) == k
        assert out.stride(1) == 1
        assert sizes.max(initial=0) <= b
        told = (x.data_ptr(), y.data_ptr(), which.data_ptr(), sizes.ctypes.data, scale.data_ptr())
        vectors = (w.data_ptr(), w.stride(0), *_place(base), *_place(out))
        space = self._space(b)
        _enough(self._functions.fk_gradients(space, self._threads, k, b, *told, *vectors, losses.data_ptr()))
        return losses

    def run(self, jobs: Jobs, out: Tensor) -> Outcomes:
        """Train all of them; the weights are put into `out` [k, D]."""
        course, k = jobs.course, len(jobs.samples)
        self._check_weights(k, jobs.start, out)
        self._check_samples(jobs.x, jobs.y)
        x, y = jobs.x.contiguous(), jobs.y.contiguous()
        trail = course.trail
        kept = {
            "start": jobs.start,
            "offset": course.offset,
            "anchor": course.anchor if course.pull is not None else None,
            "first_last": None if trail is None else trail.last,
            "first_past": None if trail is None else trail.past,
        }
        vectors = {name: v if v is None or v.stride(1) == 1 else v.contiguous() for name, v in kept.items()}
        vectors |= {"w": out, "last": jobs.last, "past": jobs.past}
        self._check_weights(k, *(v for v in vectors.values() if v is not None))
        rates, order = jobs.rates.double().contiguous(), np.ascontiguousarray(jobs.order, dtype=np.int64)
        assert order.shape[0] == k == len(rates)
        assert out.stride(1) == 1
        assert (jobs.samples <= order.shape[2]).all()
        assert (jobs.steps <= -(-jobs.samples // jobs.batch) * order.shape[1]).all()
        assert (jobs.steps <= jobs.each * rates.shape[1]).all()
        rows = np.arange(k)
        told = np.zeros(k, _JOB)
        for name, vector in vectors.items():
            told[name] = 0 if vector is None else vector.data_ptr() + rows * vector.stride(0) * vector.element_size()
        told["order"] = order.ctypes.data + rows * order.strides[0]
        told["samples"], told["next"] = jobs.samples, order.shape[2]
        told["rates"] = rates.data_ptr() + rows * rates.stride(0) * 8
        told["share"], told["pull"] = course.share, 0.0 if course.pull is None else course.pull[:, 0].double().numpy()
        told["ascent"] = course.ascent
        if trail is not None:
            assert jobs.last is not None
            assert jobs.past is not None
            told["keep"], told["gain"], told["late"] = trail.keep, trail.gain[:, 0].double().numpy(), trail.late
        told["steps"], told["each"], told["batch"] = jobs.steps, jobs.each, jobs.batch
        if jobs.mask is not None:
            assert jobs.mask.shape == (self._size,)
            assert jobs.mask.dtype == self._dtype
        mask = None if jobs.mask is None else jobs.mask.contiguous()
        local = _Local(None if mask is None else mask.data_ptr(), jobs.decay, jobs.clip, jobs.momentum)
        space = self._space(int(jobs.batch.max()))
        data = x.data_ptr(), y.data_ptr(), told.ctypes.data, k
        _enough(self._functions.fk_run(space, self._threads, *data, ctypes.byref(local)))
        return Outcomes(told["loss"], told["seen"], told["finite"] != 0)

    def score(
        self, w: Tensor, x: Tensor, y: Tensor, which: Tensor | None, part: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Test `w` [D] on all samples, or on those that are named: (hits, summed losses) of every `part` of them."""
        self._check_weights(1, w.unsqueeze(0))
        self._check_samples(x, y)
        w, x, y = w.contiguous(), x.contiguous(), y.contiguous()
        which = None if which is None else which.to(torch.int64).contiguous()
        count = len(y) if which is None else len(which)
        parts = -(-count // part)
        hits, losses = np.zeros(parts, np.int64), np.zeros(parts)
        if not parts:
            return hits, losses
        named = None if which is None else which.data_ptr()
        told = (w.data_ptr(), x.data_ptr(), y.data_ptr(), named, count, part, hits.ctypes.data, losses.ctypes.data)
        _enough(self._functions.fk_score(self._space(min(part, count)), self._threads, *told))
        return hits, losses

    def _check_weights(self, k: int, *stacks: Tensor) -> None:
        for stack in stacks:
            if stack.shape != (k, self._size) or stack.dtype != self._dtype:
                raise FedkeelError(
                    f"the weights of native training must be [{k}, {self._size}] of {self._dtype}; "
                    f"got {list(stack.shape)} of {stack.dtype}"
                )

    def _check_samples(self, x: Tensor, y: Tensor) -> None:
        """x [..., *shape], y [...]"""
        fit = x.shape[: y.dim()] == y.shape and prod(x.shape[y.dim() :]) == self._sample
        if not fit or x.dtype != self._dtype or y.dtype != torch.int64:
            raise FedkeelError(
                f"the samples of native training must have {self._sample} numbers each, of {self._dtype}; "
                f"got {list(x.shape)} of {x.dtype}"
            )


def exact_mean(library: Library, rows: Tensor, shares: Tensor, threads: int) -> Tensor | None:
    """[2, D], both parts of the mean of rows [k, D], whose shares [k] are scaled; None if the kernel cannot do it."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    shares, made = shares.contiguous(), torch.empty(2, rows.shape[1], dtype=torch.float64)
    assert shares.dtype == torch.float64
    assert len(shares) == len(rows)
    size, where = rows.element_size(), (made[0].data_ptr(), made[1].data_ptr())
    told = rows.data_ptr(), rows.stride(0), shares.data_ptr(), *rows.shape, size
    return made if _functions(library).fk_mean(threads, *told, *where) else None


def _place(stack: Tensor | None) -> tuple[int | None, int]:
    """(Where a stack of vectors lies, how far it is from one to the next)."""
    return (None, 0) if stack is None else (stack.data_ptr(), stack.stride(0))


def _enough(memory: int) -> None:
    if not memory:
        raise MemoryError("there is not enough memory for native training; use fewer threads (executor.workers)")


def _free_all(free: Callable[[int | None], None], spaces: Sequence[int | None]) -> None:
    for space in spaces:
        free(space)


@cache
def _functions(library: Library) -> ctypes.CDLL:
    """The library with the types of its functions."""
    handle, pointer, number, long = library.handle, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    stack = [pointer, long]
    takes: dict[str, list[Any]] = {
        "fk_new": [pointer, number, number, long, number],
        "fk_free": [pointer],
        "fk_run": [pointer, number, pointer, pointer, pointer, long, pointer],
        "fk_gradients": [pointer, number, long, long, *[pointer] * 5, *stack * 3, pointer],
        "fk_score": [pointer, number, pointer, pointer, pointer, pointer, long, long, pointer, pointer],
        "fk_mean": [number, pointer, long, pointer, long, long, number, pointer, pointer],
    }
    for name, types in takes.items():
        function = getattr(handle, name)
        function.argtypes, function.restype = types, {"fk_new": pointer, "fk_free": None}.get(name, number)
    return handle
