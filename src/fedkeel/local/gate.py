"""No fast path is trusted before it has shown, on this model and these shapes, what plain autograd shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel.data.federated import FederatedData
from fedkeel.data.partition import Assignment
from fedkeel.experiment import ExecutorSettings, LocalSettings
from fedkeel.local.build import Workshop
from fedkeel.local.orders import Order
from fedkeel.local.trainers import plan

SHAPES = 32
"""Sizes of mini-batches that are tried: all that occur, or so many of them from the smallest to the largest."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""On the norm of the difference of two steps, against the norm of the step."""


def objection(workshop: Workshop, settings: ExecutorSettings, orders: Sequence[Order]) -> str | None:
    """Why these settings must not be used for these orders, if there is a reason.

    Trains one step with a client for every size of mini-batch that occurs, the remainders included, by the
    trainer in question and one by one, and compares everything that comes out.
    """
    if not settings.stack and not settings.channels_last:
        return None
    if settings.stack and (reason := cannot_stack(workshop)):
        return reason
    sizes = batch_sizes(workshop.data, workshop.local)
    trial = replace(workshop, data=_dealt(workshop.data, sizes))
    trials = [replace(orders[i % len(orders)], client=i) for i in range(len(sizes))]
    reference, candidate = trial.trainer(ExecutorSettings(kind="serial")), trial.trainer(settings)
    try:
        for rows in plan(trials, trial.data, trial.local, settings.stack or None):
            chosen = [trials[row] for row in rows]
            got, expected = candidate(chosen, 1), reference(chosen, 1)
            if got.keys() != expected.keys():
                return f"it gives {sorted(got)} instead of {sorted(expected)}"
            for name in expected:
                if name != "lr" and (reason := _differs(name, got[name], expected[name], chosen)):
                    return reason
    except Exception as error:  # a model that vmap cannot follow fails in its own way
        return f"it fails ({type(error).__name__}: {' '.join(str(error).split())})"
    return None


def cannot_stack(workshop: Workshop) -> str | None:
    """Why the clients' models cannot be trained at once, if there is a reason to see beforehand."""
    if any(True for _ in workshop.module.buffers()):
        return "the model has buffers, such as batch-norm statistics"
    if _is_random(workshop.module, workshop.data):
        return "the model's forward pass is random, as with dropout"
    return None


def batch_sizes(data: FederatedData, local: LocalSettings) -> list[int]:
    """Every size of mini-batch that occurs, or `SHAPES` of them."""
    sizes = data.sizes[data.sizes > 0]
    largest = sizes if local.batch_size == "full" else np.minimum(sizes, int(local.batch_size))
    every: NDArray[np.int64] = np.unique(np.concatenate([largest, np.where(sizes % largest, sizes % largest, largest)]))
    some = np.linspace(0, len(every) - 1, min(SHAPES, len(every))).round().astype(int)
    return [int(size) for size in every[some]]


def _dealt(data: FederatedData, sizes: Sequence[int]) -> FederatedData:
    """The same samples, dealt to clients of these sizes; they may share samples."""
    places = np.concatenate([np.arange(size) for size in sizes]) % len(data.train.y)
    return replace(data, assignment=Assignment(places, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)))


def _is_random(module: nn.Module, data: FederatedData) -> bool:
    x, _ = data.train_batch(torch.arange(min(8, len(data.train.y))))
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        was = module.training
        outputs = []
        for seed in range(2):
            torch.manual_seed(seed)
            outputs.append(module.train()(x))
        module.train(was)
    return not torch.equal(*outputs)


def _differs(name: str, got: Tensor, expected: Tensor, orders: Sequence[Order]) -> str | None:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"its {name} is {list(got.shape)} of {got.dtype} instead of {list(expected.shape)} of {expected.dtype}"
    if name == "w":
        start = torch.stack([order.start for order in orders])
        got, expected = got - start, expected - start
    a, b = got.flatten(1).double() if got.dim() > 1 else got[:, None].double(), None
    b = expected.reshape(a.shape).double()
    tolerance = _TOLERANCE[orders[0].start.dtype]
    off = (a - b).norm(dim=1) > tolerance * b.norm(dim=1) + tolerance * 1e-3
    if bool(off.any()):
        return f"its {name} after one step deviates by up to {float((a - b).abs().max()):.2g} from plain autograd"
    return None
