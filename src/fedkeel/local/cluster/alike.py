"""What must be the same on all machines of a cluster, so that results do not depend on who trains what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fedkeel
from fedkeel.local.machine import processor
from fedkeel.local.native import library

Facts = Mapping[str, Any]
_SETS, _BITS, _PROCESSOR = "instruction sets", "bits", "processor"


@cache
def facts() -> Facts:
    """Of this machine."""
    return {
        "fedkeel": f"{fedkeel.__version__}, code {_code()}",
        "PyTorch": str(torch.__version__),
        _SETS: [*library.usable()],
        _BITS: f"{torch.backends.cpu.get_cpu_capability()}, {_bits()}",
        _PROCESSOR: processor() or "an unknown processor",
    }


def objection(host: str, theirs: Facts) -> str | None:
    """Why a machine with these facts cannot train together with this one, and what to do."""
    mine = facts()
    for what in ("fedkeel", "PyTorch"):
        if theirs.get(what) != mine[what]:
            return (
                f"the machine {host} of the cluster has another {what} ({theirs.get(what)}) than this one "
                f"({mine[what]}); install the same version there"
            )
    loaded = library.load()
    if loaded is not None and loaded.isa not in theirs[_SETS]:
        best = next((isa for isa in mine[_SETS] if isa in theirs[_SETS]), None)
        instead = f"set FEDKEEL_ISA={best}" if best else "set FEDKEEL_NATIVE=no"
        return (
            f"the machine {host} of the cluster cannot use the native kernels for {loaded.isa}; {instead} to give all "
            "machines the same results"
        )
    if theirs[_BITS] != mine[_BITS]:
        return (
            f"PyTorch rounds otherwise on the machine {host} of the cluster ({theirs[_PROCESSOR]}; {theirs[_BITS]}) "
            f"than on this one ({mine[_PROCESSOR]}; {mine[_BITS]}), so results would depend on who trains what; use "
            "machines of one kind, or set ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=AVX2 and MKL_CBWR=COMPATIBLE "
            "on all of them before `ray start` and fedkeel"
        )
    return None


def _code() -> str:
    """A few letters for the code of fedkeel."""
    root, found = Path(fedkeel.__file__).parent, sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:8]


def _bits() -> str:
    """A few letters for what PyTorch computes, which chooses its kernels by the processor."""
    threads, found = torch.get_num_threads(), sha256()
    torch.set_num_threads(1)
    try:
        for result in _computed():
            found.update(result.detach().contiguous().numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
    return found.hexdigest()[:8]


def _computed() -> Iterator[Tensor]:
    """Results of what training is made of, on numbers that are the same everywhere."""
    for dtype in (torch.float32, torch.float64):
        x, w = _numbers(dtype, 32, 784), _numbers(dtype, 784, 64)
        y = x @ w
        yield from (y, x.T @ y, y.log_softmax(1), x.sum(), x.norm(), x.exp(), x.tanh(), x.sigmoid())
        images, filters = (_numbers(dtype, *shape).requires_grad_() for shape in ((16, 8, 14, 14), (16, 8, 3, 3)))
        with torch.enable_grad():
            maps = functional.conv2d(images, filters, padding=1)
            yield from torch.autograd.grad(maps.square().mean(), (images, filters))
        yield from (maps, functional.group_norm(maps, 4))


def _numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    """Between -1/2 and 1/2."""
    count = torch.Size(shape).numel()
    return ((torch.arange(1, count + 1) * 2654435761 % 2**32).double() / 2**32 - 0.5).to(dtype).view(shape)
