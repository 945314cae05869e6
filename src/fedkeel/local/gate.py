"""No fast path is trusted before it has shown, on this model and these shapes, what plain autograd shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.data.federated import FederatedData
from fedkeel.data.partition import Assignment
from fedkeel.experiment import ExecutorSettings, LocalSettings
from fedkeel.local.build import Workshop
from fedkeel.local.orders import Columns, Order
from fedkeel.local.trainers import plan

SHAPES = 32
"""Sizes of mini-batches that are tried: all that occur, or so many of them from the smallest to the largest."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""On the norm of the difference of two steps, against the norm of the step."""


def objection(workshop: Workshop, settings: ExecutorSettings, orders: Sequence[Order]) -> str | None:
    """Why these settings must not be used for these orders, if there is a reason.

    Trains one step with clients of every size of mini-batch that occurs, the remainders included, by the trainer in
    question and one by one, and compares all that comes out. Stacks are tried with mini-batches of different sizes
    side by side, as planned, and of one size.
    """
    if not settings.stack and not settings.channels_last:
        return None
    if settings.stack and (reason := cannot_stack(workshop)):
        return reason
    each = min(2, settings.stack or 1)
    sizes = [size for size in batch_sizes(workshop.data, workshop.local) for _ in range(each)]
    trial = replace(workshop, data=_dealt(workshop.data, sizes))
    trials = [replace(orders[i // each % len(orders)], client=i) for i in range(len(sizes))]
    stacks = plan(trials, trial.data, trial.local, settings.stack or None)
    stacks += [[*range(i, i + each)] for i in range(0, len(sizes), each)] if each > 1 else []
    try:
        expected = trial.trainer(ExecutorSettings(kind="serial"))(trials, 1)
        candidate = trial.trainer(settings)
        differences = (_difference(candidate([trials[i] for i in rows], 1), expected, rows, trials) for rows in stacks)
        return next(filter(None, differences), None)
    except Exception as error:  # a model that vmap cannot follow fails in its own way
        return f"it fails ({type(error).__name__}: {' '.join(str(error).split())})"


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
    every = np.unique(np.concatenate([largest, np.where(sizes % largest, sizes % largest, largest)]))
    some = np.linspace(0, len(every) - 1, min(SHAPES, len(every))).round().astype(int)
    return [int(size) for size in every[some]]


def _dealt(data: FederatedData, sizes: Sequence[int]) -> FederatedData:
    """The same samples, dealt to clients of these sizes; they may share samples."""
    places = np.concatenate([np.arange(size) for size in sizes]) % len(data.train.y)
    return replace(data, assignment=Assignment(places, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)))


def _is_random(module: nn.Module, data: FederatedData) -> bool:
    x, _ = data.train_batch(torch.arange(min(8, len(data.train.y))))
    was, outputs = module.training, []
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        for seed in range(2):
            torch.manual_seed(seed)
            outputs.append(module.train()(x))
    module.train(was)
    return not torch.equal(*outputs)


def _difference(got: Columns, expected: Columns, rows: Sequence[int], orders: Sequence[Order]) -> str | None:
    """What a stack says against what each of its clients says alone."""
    if got.keys() != expected.keys():
        return f"it gives {sorted(got)} instead of {sorted(expected)}"
    tolerance = _TOLERANCE[orders[0].start.dtype]
    for name in sorted(expected.keys() - {"lr"}, reverse=True):  # which is as wide as the longest job beside it
        a, b = got[name], expected[name][rows]
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"its {name} is {list(a.shape)} of {a.dtype} instead of {list(b.shape)} of {b.dtype}"
        if name == "w":  # what counts is how far a client moves
            start = torch.stack([orders[row].start for row in rows])
            a, b = a - start, b - start
        a, b = (_flat(each) for each in (a, b))
        if bool(((a - b).norm(dim=1) > tolerance * b.norm(dim=1) + tolerance * 1e-3).any()):
            return f"its {name} after one step deviates by up to {float((a - b).abs().max()):.2g} from plain autograd"
    return None


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), -1).double()
