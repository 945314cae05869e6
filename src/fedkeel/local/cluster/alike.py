"""What must be the same on all machines of a cluster, so that results do not depend on who trains what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedkeel
from fedkeel.errors import InputError, label, words
from fedkeel.local.cluster.wish import Node
from fedkeel.local.gradients.chain import chain
from fedkeel.local.machine import processor
from fedkeel.local.native import library
from fedkeel.local.native.network import Network
from fedkeel.params import Layout

Facts = Mapping[str, Any]
_KERNELS, _BITS, _PROCESSOR = "kernels", "bits", "processor"


@cache
def facts() -> Facts:
    """Of this machine, whatever this program has set in PyTorch."""
    with _plainly():
        libraries = {isa: library.named(isa) for isa in library.usable()}
        return {
            "fedkeel": f"{fedkeel.__version__}, code {_code()}",
            "PyTorch": str(torch.__version__),
            _KERNELS: {isa: _digest(_trained(each)) for isa, each in libraries.items() if each is not None},
            _BITS: f"{torch.backends.cpu.get_cpu_capability()}, {_digest(_computed())}",
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
    if loaded is not None and loaded.isa not in theirs[_KERNELS]:
        best = next((isa for isa in mine[_KERNELS] if isa in theirs[_KERNELS]), None)
        instead = f"set FEDKEEL_ISA={best}" if best else "set FEDKEEL_NATIVE=no"
        return (
            f"the machine {host} of the cluster cannot use the native kernels for {loaded.isa}; {instead} to give all "
            "machines the same results"
        )
    if loaded is not None and theirs[_KERNELS][loaded.isa] != mine[_KERNELS][loaded.isa]:
        return (
            f"the native kernels of the machine {host} of the cluster round otherwise than those of this one, as by "
            "another compiler; install the same wheel of fedkeel on all machines, or set FEDKEEL_NATIVE=no"
        )
    if theirs[_BITS] != mine[_BITS]:
        return (
            f"PyTorch rounds otherwise on the machine {host} of the cluster ({theirs[_PROCESSOR]}; {theirs[_BITS]}) "
            f"than on this one ({mine[_PROCESSOR]}; {mine[_BITS]}), so results would depend on who trains what; use "
            "machines of one kind, or set ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=AVX2 and MKL_CBWR=COMPATIBLE "
            "on all of them before `ray start` and fedkeel; and import fedkeel before PyTorch computes anything"
        )
    return None


def check(ray: Any, nodes: Sequence[Node], seconds: float) -> None:
    """Refuse machines whose results would be others, or that lack what workers need; each must answer in this time."""

    def look() -> Any:  # a function inside of another one travels by value: it needs no fedkeel over there
        try:
            from fedkeel.local.cluster.alike import facts

            return facts()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {task.options(scheduling_strategy=where(node.id, soft=False)).remote(): node for node in nodes}
    ready, late = ray.wait([*asked], num_returns=len(asked), timeout=seconds)
    for ref in late:
        raise InputError(
            f"executor.address: the machine {asked[ref].host} of the cluster does not answer within {seconds:.0f} "
            "seconds; take it out of the cluster, or start Ray there again"
        )
    for ref in ready:
        host = asked[ref].host
        try:
            theirs = ray.get(ref)
        except Exception as error:
            theirs = words(error)
        if isinstance(theirs, str):
            raise InputError(
                f"executor.address: the machine {host} of the cluster cannot import fedkeel ({label(theirs)}); install "
                "the same version there"
            )
        if reason := objection(host, theirs):
            raise InputError(f"executor.address: {reason}")


def _code() -> str:
    """A few letters for the code of fedkeel."""
    root, found = Path(fedkeel.__file__).parent, sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:8]


@contextmanager
def _plainly() -> Iterator[None]:
    """With PyTorch's settings as they are at first; its generator of random numbers is left as it is."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def _digest(results: Iterable[Tensor]) -> str:
    """A few letters for these bits."""
    found = sha256()
    for result in results:
        found.update(result.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:8]


def _trained(kernels: library.Library) -> Iterator[Tensor]:
    """Losses and gradients by native kernels, on numbers that are the same everywhere."""
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 25, 10))
    layout = Layout.of(module)
    layers = chain(module, layout, (3, 12, 12))
    for dtype in (torch.float32, torch.float64):
        x, y = _numbers(dtype, 2, 8, 3, 12, 12), torch.arange(16).view(2, 8) % 10
        w, g = _numbers(dtype, 2, layout.size), torch.empty(2, layout.size, dtype=dtype)
        network = Network(kernels, layers, layout, dtype, threads=1)
        yield from (network.gradients(w, x, y, np.array([8, 8]), torch.ones(2), g), g)


def _computed() -> Iterator[Tensor]:
    """What training is made of by PyTorch, which chooses its kernels by the processor; on numbers as above."""
    for dtype in (torch.float32, torch.float64):
        x, w = _numbers(dtype, 32, 784), _numbers(dtype, 784, 64)
        y = x @ w
        yield from (y, x.T @ y, y.log_softmax(1), x.sum(), x.norm(), x.exp(), x.tanh(), x.sigmoid())
        images, filters = (_numbers(dtype, *shape).requires_grad_() for shape in ((16, 8, 14, 14), (16, 8, 3, 3)))
        maps = functional.conv2d(images, filters, padding=1)
        yield from torch.autograd.grad(maps.square().mean(), (images, filters))
        yield from (maps, functional.group_norm(maps, 4))


def _numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    """Between -1/2 and 1/2."""
    count = torch.Size(shape).numel()
    return ((torch.arange(1, count + 1) * 2654435761 % 2**32).double() / 2**32 - 0.5).to(dtype).view(shape)
