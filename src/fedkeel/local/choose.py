"""Which executor is fastest for this work on this machine: measured, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fedkeel.errors import InputError
from fedkeel.experiment import ExecutorSettings
from fedkeel.local.batches import steps
from fedkeel.local.build import Workshop, cores
from fedkeel.local.gate import batch_sizes, cannot_stack, objection
from fedkeel.local.orders import Order
from fedkeel.local.trainers import plan
from fedkeel.params import Layout

STACK_BYTES = 256 << 20
"""What one stack may take in memory."""
_VECTORS = 6  # of a model's size that a client of a stack needs: weights, gradient, direction, ...
_SIZES = (64, 256, 16, 4, 1)
_BUDGET = 0.8  # seconds for trying ways to train
_TRIAL = 0.02  # seconds of one measurement of such a way
_FINALISTS = 2  # ways that are tried on a whole round, in this process and in workers
_REHEARSAL = 0.06  # seconds of one measurement of these
_NOTICEABLE = 0.3  # a run that takes no longer is not worth a choice
_LONG = 60.0  # a run that takes longer is worth PyTorch's vmap, which takes two seconds to load

SERIAL = ExecutorSettings(kind="serial", stack=0, channels_last=False)


@dataclass(frozen=True)
class Choice:
    """The executor to use, and why."""

    settings: ExecutorSettings
    """Nothing that could change a result is left open."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What a round would take with each candidate, as measured on a part of the first one."""
    refused: dict[str, str] = field(default_factory=dict)
    """Candidates that were faster and failed against plain autograd."""


def settle(workshop: Workshop, asked: ExecutorSettings, orders: Sequence[Order], rounds: int, fork: bool) -> Choice:
    """Fill in what `asked` leaves open by trying the candidates on the first round's orders.

    The winner must agree with plain autograd before it is used. What was asked for by name and does not is an error.
    """
    if asked.kind == "serial":
        asked = asked.model_copy(update={"stack": 0, "channels_last": bool(asked.channels_last)})
    if asked.settled:
        if reason := objection(workshop, asked, orders):
            raise _refusal(asked, reason)
        return Choice(asked)
    seconds: dict[ExecutorSettings, float] = {}
    if asked.kind == "auto" and asked.stack is None and asked.channels_last is None:
        seconds[SERIAL] = _seconds(workshop, SERIAL, orders)
        if seconds[SERIAL] * rounds < _NOTICEABLE:
            return Choice(SERIAL, _report(seconds))
    workers = min(asked.workers or cores(), len(orders)) if fork and asked.kind in ("auto", "processes") else 1
    begun = perf_counter()
    for way in _ways(workshop, asked, len(orders), workers, seconds.get(SERIAL, 0.0) * rounds > _LONG):
        if way not in seconds and (not seconds or perf_counter() - begun < _BUDGET):
            seconds[way] = _seconds(workshop, way, orders)
    ranked = sorted(seconds, key=seconds.__getitem__)
    # A stack larger than a worker's share would leave somebody idle.
    shared = [_in_processes(way, asked) for way in ranked if (way.stack or 0) <= -(-len(orders) // workers)]
    if asked.kind == "processes":
        ranked = shared or [_in_processes(way, asked) for way in ranked]
    elif workers > 1:
        finals = [*ranked[:_FINALISTS], *shared[:_FINALISTS]]
        few = _few(workshop, orders, seconds[ranked[0]], 2 * workers * max(way.stack or 1 for way in finals))
        measured = _rehearse(workshop, finals, few, seconds[ranked[0]] / _work(workshop, orders).sum())
        share = _work(workshop, orders).sum() / _work(workshop, few).sum()
        ranked = [*sorted(finals, key=measured.__getitem__), *ranked]
        seconds |= {way: value * share for way, value in measured.items()}
    return _first_that_holds(workshop, ranked, orders, _report(seconds))


def _first_that_holds(
    workshop: Workshop, ranked: Sequence[ExecutorSettings], orders: Sequence[Order], seconds: dict[str, float]
) -> Choice:
    refused: dict[str, str] = {}
    for settings in ranked:
        reason = objection(workshop, settings, orders)
        if reason is None:
            return Choice(settings, seconds, refused)
        refused[settings.label] = reason
    raise _refusal(ranked[0], next(iter(refused.values())))


def _ways(
    workshop: Workshop, asked: ExecutorSettings, orders: int, workers: int, patient: bool
) -> list[ExecutorSettings]:
    """Every way to train in this process that fits what was asked for, the most promising first."""
    ways = []
    if asked.kind != "vectorised" and not asked.stack:
        formats = [False, True] if any(part.dim() == 4 for part in workshop.module.parameters()) else [False]
        formats = formats if asked.channels_last is None else [asked.channels_last]
        ways += [ExecutorSettings(kind="serial", stack=0, channels_last=each) for each in formats]
    wanted = asked.kind == "vectorised" or bool(asked.stack)
    if wanted or (asked.stack is None and not asked.channels_last and (patient or workshop.dense)):
        reason = cannot_stack(workshop)
        if reason and not ways:
            raise _refusal(asked, reason)
        limit = min(orders, stack_limit(workshop))
        sizes = [min(limit, -(-orders // workers)), limit, *(size for size in _SIZES if size < limit)]
        for size in [] if reason else [asked.stack] if asked.stack else dict.fromkeys(sizes):
            ways.append(ExecutorSettings(kind="vectorised", stack=size, channels_last=False))
    return ways


def _in_processes(way: ExecutorSettings, asked: ExecutorSettings) -> ExecutorSettings:
    return way.model_copy(update={"kind": "processes", "workers": asked.workers})


def stack_limit(workshop: Workshop) -> int:
    """How many clients' vectors and activations fit into `STACK_BYTES`; at least one's."""
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    samples = torch.arange(max(batch_sizes(workshop.data, workshop.local))) % len(workshop.data.train.y)
    x, y = workshop.data.train_batch(samples)
    counting = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.enable_grad(), counting:
        cross_entropy(workshop.module(x), y)
    layout = Layout.of(workshop.module)
    vectors = _VECTORS * layout.size * next(workshop.module.parameters()).element_size()
    return max(1, STACK_BYTES // (vectors + 2 * kept))


def _seconds(workshop: Workshop, way: ExecutorSettings, orders: Sequence[Order]) -> float:
    """What a round would take one way, from a few steps of a typical stack."""
    stacks = plan(orders, workshop.data, workshop.local, way.stack or None)
    rows = stacks[len(stacks) // 2]
    typical = [orders[row] for row in rows]
    trainer = workshop.trainer(way)
    work = _work(workshop, typical)
    trainer(typical, 1)
    once = _time(lambda: trainer(typical, 1))
    limit = int(np.clip(_TRIAL / once, 1, work.max()))
    best = once if once > 10 * _TRIAL else min(_time(lambda: trainer(typical, limit)) for _ in range(3))
    return float(best / work.clip(max=limit).sum() * _work(workshop, orders).sum())


def _few(workshop: Workshop, orders: Sequence[Order], round_seconds: float, least: int) -> Sequence[Order]:
    """So many orders that one step of all takes no longer than a rehearsal, but enough to keep everybody busy."""
    step_seconds = round_seconds / _work(workshop, orders).mean()
    return orders[: max(least, int(len(orders) * _REHEARSAL / step_seconds))]


def _rehearse(
    workshop: Workshop, rivals: Sequence[ExecutorSettings], orders: Sequence[Order], step_seconds: float
) -> dict[ExecutorSettings, float]:
    """The seconds that each rival would take for these orders, from as many steps as time allows, in turns."""
    work = _work(workshop, orders)
    limit = int(np.clip(_REHEARSAL / (step_seconds * len(orders)), 1, work.max()))
    executors = [workshop.executor(settings) for settings in rivals]
    times: list[list[float]] = [[] for _ in rivals]
    try:
        for executor in executors:
            executor.train(orders[:1], 1)  # workers start
        for _ in range(2):
            for executor, seconds in zip(executors, times, strict=True):
                begun = perf_counter()
                executor.train(orders, limit)
                seconds.append(perf_counter() - begun)
    finally:
        for executor in executors:
            executor.close()
    share = float(work.sum() / work.clip(max=limit).sum())
    return {settings: min(seconds) * share for settings, seconds in zip(rivals, times, strict=True)}


def _work(workshop: Workshop, orders: Sequence[Order]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Steps of each order."""
    sizes = workshop.data.sizes[[order.client for order in orders]]
    return steps(sizes, np.array([order.epochs for order in orders]), workshop.local.batch_size)[1]


def _time(work: Callable[[], object]) -> float:
    begun = perf_counter()
    work()
    return perf_counter() - begun


def _report(seconds: dict[ExecutorSettings, float]) -> dict[str, float]:
    return {settings.label: float(f"{value:.3g}") for settings, value in seconds.items()}


def _refusal(asked: ExecutorSettings, reason: str) -> InputError:
    accepted = "serial, or auto" if asked.stack or asked.kind == "vectorised" else "executor.channels_last=false"
    return InputError(f"executor: {asked.label} is not accepted for this model: {reason}; accepted: {accepted}")
