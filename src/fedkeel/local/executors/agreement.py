"""No fast path is trusted before it has shown, on this model and these shapes, what plain autograd shows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from torch import nn

from fedkeel.data.federated import FederatedData
from fedkeel.data.partition import Assignment
from fedkeel.local import generators
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings
from fedkeel.local.work import batch_sizes
from fedkeel.wire.orders import SUM, Columns, Order
from fedkeel.wire.transform import Chain

SHAPES = 32
"""Sizes of mini-batches that are tried: all that occur, or so many of them from the smallest to the largest."""
SECONDS = 0.5
"""For trying them; the largest, that one in two steps, and the smallest are tried in any case."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""On the norm of the difference of two steps, against the norm of the step."""
_HALF = 0.05
"""The same for gradients in bfloat16, whose numbers have 8 bits."""
_RATES = {"sgd": 1.0, "adam": 0.01, "adamw": 0.01}
"""At which it is trained. Adam moves every weight by its rate: 1 would leave nothing of the model for a second step."""
_EPS = 1e-3
"""Of Adam, at least, for it would make whole steps of gradients that are nothing but rounding."""


def objection(workshop: Workshop, settings: ExecutorSettings, orders: Sequence[Order]) -> str | None:
    """Why these settings must not be used for these orders, if there is a reason.

    Trains one epoch at a fixed learning rate (unless the rule sets its own) with clients of every size of mini-batch
    that occurs, remainders included, by the trainer in question and one by one, and compares all that comes out. The
    epoch has one step, but for two clients, whose second step shows what a rule makes of weights that have moved.
    Stacks are tried with mini-batches of different sizes side by side, and of one size.
    """
    if not (settings.stack or settings.native or settings.channels_last):
        return None
    if settings.stack and not settings.native and (reason := cannot_stack(workshop)):
        return reason
    largest, *others = reversed(_some(batch_sizes(workshop.data, workshop.local)))
    sizes = [largest, 2 * largest, *others[-1:], *others[:-1]]
    # The kernels train every client on its own, so that there is less to try: the first three at once.
    each = 1 if settings.native else min(2, settings.stack or 1)
    at_once, least = (3, 1) if settings.native else (each, 4)
    # Without the wire: what comes of a step is compared, and rounding there would hide or exaggerate a difference.
    dealt = _dealt(workshop.data, [size for size in sizes for _ in range(each)])
    local = workshop.local.model_copy(
        update={"batch_size": largest, "eps": max(_EPS, workshop.local.eps)}  # twice as many samples are two steps
    )
    trial = replace(workshop, data=dealt, local=local, wire=Chain())
    rate = _RATES[local.optimizer]
    units = (dealt.sizes // largest).clip(1, local.units) if local.by_step else np.ones_like(dealt.sizes)  # an epoch
    trials = [
        replace(orders[0], client=client, epochs=count, lr=orders[0].lr.new_full((count,), rate))
        for client, count in enumerate(units.tolist())
    ]
    stacks = [trials[start : start + at_once] for start in range(0, len(trials), at_once)]
    if settings.stack and not settings.native:
        stacks.insert(0, trials[::each][: settings.stack])
    until = perf_counter() + SECONDS
    try:
        reference = trial.executor(ExecutorSettings(kind="serial"))
        alone = "vectorised" if settings.stack else "serial"
        candidate = trial.executor(settings.model_copy(update={"kind": alone, "workers": None}))
        for number, stack in enumerate(stacks):
            if number >= least and perf_counter() > until:
                break
            trained = candidate.train(stack).columns, reference.train(stack).columns
            if reason := _difference(*trained, stack, local.precision == "bfloat16"):
                return reason
    except Exception as error:  # a model that vmap cannot follow fails in its own way
        return failure(error)
    return None


def failure(error: Exception) -> str:
    """What is told of a way to train that fails for this model or rule."""
    return f"it fails ({type(error).__name__}: {' '.join(str(error).split())})"


def cannot_stack(workshop: Workshop) -> str | None:
    """Why the clients' models cannot be trained at once, if there is a reason to see beforehand."""
    if not workshop.task.loss.by_sample:
        return "the loss is one number for a whole mini-batch"
    if workshop.local.only_autograd:
        return workshop.local.only_autograd
    if any(True for _ in workshop.module.buffers()):
        return "the model has buffers, such as batch-norm statistics"
    if _is_random(workshop.module, workshop.data):
        return "the model's forward pass is random, as with dropout"
    return None


def _some(sizes: Sequence[int]) -> list[int]:
    """All of them, or `SHAPES` from the first to the last."""
    return [sizes[i] for i in np.linspace(0, len(sizes) - 1, min(SHAPES, len(sizes))).round().astype(int)]


def _dealt(data: FederatedData, sizes: Sequence[int]) -> FederatedData:
    """The same samples, dealt to clients of these sizes; they may share samples."""
    places = np.concatenate([np.arange(size) for size in sizes]) % len(data.train.y)
    dealt = Assignment(places, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    return replace(data, assignment=dealt, test_rows=None, validation_rows=None, client_names=None)


def _is_random(module: nn.Module, data: FederatedData) -> bool:
    trial = copy.deepcopy(module).train()
    x, _ = data.train_batch(torch.arange(min(8, len(data.train.y))))
    outputs = []
    with generators.restored([x.device] if x.is_cuda else []), torch.no_grad():
        for seed in range(2):
            generators.seed_all(seed)
            outputs.append(trial(x))
    return not torch.equal(*outputs)


def _difference(got: Columns, expected: Columns, orders: Sequence[Order], half: bool = False) -> str | None:
    """What a stack says against what each of its clients says alone."""
    if got.keys() != expected.keys():
        return f"it gives {sorted(got)} instead of {sorted(expected)}"
    tolerance = _HALF if half else _TOLERANCE[orders[0].start.dtype]
    for name in ["w", *expected]:
        a, b = got[name], expected[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"its {name} is {list(a.shape)} of {a.dtype} instead of {list(b.shape)} of {b.dtype}"
        if name == "w":  # what counts is how far a client moves
            a, b = a - orders[0].start, b - orders[0].start
        elif name == "lr":  # what stands behind a client's last epoch says nothing
            epochs = torch.tensor([[order.epochs] for order in orders], device=a.device)
            a, b = (torch.where(torch.arange(a.shape[1], device=a.device) < epochs, each, 0.0) for each in (a, b))
        rows = 1 if name.startswith(SUM) else len(orders)
        a, b = (each.reshape(rows, -1).double() for each in (a, b))
        if not bool(((a - b).norm(dim=1) <= tolerance * (b.norm(dim=1) + 1e-6)).all()):
            return f"its {name} deviates by up to {float((a - b).abs().max()):.2g} from plain autograd"
    return None
