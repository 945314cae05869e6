"""Which executor is fastest for this work on this machine: measured, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter, thread_time

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel.errors import FedkeelError, InputError
from fedkeel.local.build import Workshop
from fedkeel.local.executors.agreement import cannot_stack, failure, objection
from fedkeel.local.executors.memory_limits import native_limit, stack_limit
from fedkeel.local.machine import cores
from fedkeel.local.settings import ExecutorSettings
from fedkeel.local.trainer import plan
from fedkeel.local.work import steps
from fedkeel.wire.orders import Order

_PARTS = (4, 16, 64, 2)  # of a worker's share that a stack may be, beside all of it
_BUDGET = 0.4  # seconds for all measurements, or a quarter of what the run would take serially, if that is less,
_LEAST = 0.2  # but not less than this
_TRIAL = 0.02  # seconds of one measurement of a way to train
_FINALISTS = 3  # ways that are rehearsed in workers, beside the best in this process
_REHEARSAL = 0.06  # seconds of one measurement of these
_STEADY = 0.3  # what takes as long as this need not be measured twice
_NOTICEABLE = 0.3  # a run that takes no longer is not worth a choice
_LONG = 60.0  # a run that takes longer is worth PyTorch's vmap, which takes two seconds to load

_CLEAR = 2 / 3  # native training that takes no more of PyTorch's time, both on one core, is chosen without more ado
_OBVIOUS = 1 / 4  # and what takes no more than this need not even be compared with closed forms

APART = ("processes", "ray")
"""Kinds that train in workers beside this process."""
SERIAL = ExecutorSettings(kind="serial").completed


@dataclass(frozen=True)
class Choice:
    """The executor to use, and why."""

    settings: ExecutorSettings
    """Nothing that could change a result is left open."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What a round would take with each candidate, as measured on a part of the first one."""
    refused: dict[str, str] = field(default_factory=dict)
    """Candidates that were faster and failed, or that deviate from plain autograd."""
    why_not_stacked: str | None = None
    """Why clients train one by one, in a sentence, unless that was asked for or is faster."""
    why_not_native: str | None = None
    """Why PyTorch computes gradients and not the compiled kernels, in a sentence, unless that was asked for."""


def settle(workshop: Workshop, asked: ExecutorSettings, orders: Sequence[Order], rounds: int, workers: int) -> Choice:
    """Fill in what `asked` leaves open by trying the candidates on the first round's orders.

    There can be so many workers beside this process; with 1 there are none.
    The winner must agree with plain autograd before it is used. What was asked for by name and does not is an error.
    """
    asked = asked.completed
    if asked.native and workshop.not_native:
        field, instead = "native=true", "set executor.native=false"
        if asked.kind == "threads":
            field, instead = "kind=threads", "use executor=auto, serial, vectorised or processes"
        raise InputError(f"executor.{field} cannot be used here: {workshop.not_native}; {instead}")
    if asked.settled:
        if reason := objection(workshop, asked, orders):
            raise _refusal(asked, reason)
        return Choice(asked)
    contest = _Contest(workshop, asked, orders, rounds, workers)
    for settings in contest.ranking():
        reason = objection(workshop, settings, orders)
        if reason is None:
            seconds = {way.label: float(f"{value:.3g}") for way, value in contest.seconds.items()}
            why = contest.why_not_stacked(settings), contest.why_not_native(settings)
            return Choice(settings, seconds, contest.refused, *why)
        contest.refused[settings.label] = reason
    raise _refusal(asked, next(iter(contest.refused.values())))


def round_seconds(
    workshop: Workshop, settings: ExecutorSettings, orders: Sequence[Order], workers: int | None = None
) -> float:
    """What a round takes one way that is settled, from a few steps of the first one; shared by so many workers."""
    workers = (settings.workers or cores()) if workers is None else workers
    shared = min(workers, len(orders)) if settings.kind in APART else 1
    return _Contest(workshop, settings, orders, rounds=1, workers=1).measure(settings) / shared


class _Contest:
    """Measures ways to train until time is up."""

    def __init__(
        self, workshop: Workshop, asked: ExecutorSettings, orders: Sequence[Order], rounds: int, workers: int
    ) -> None:
        self._workshop = workshop
        self._asked = asked
        self._orders = orders
        self._work = _work(workshop, orders)
        self.seconds = {SERIAL: 0.0}
        """Of a round with each candidate."""
        self._workers = min(workers, len(orders))
        self._share = -(-len(orders) // self._workers)
        self.refused: dict[str, str] = {}
        self._native_seconds = np.inf
        """Of a round by the compiled kernels, on one core."""
        self.seconds[SERIAL] = self.measure(SERIAL)
        self._run = self.seconds[SERIAL] * rounds
        self._until = perf_counter() + max(_LEAST, min(_BUDGET, self._run / 4))

    def why_not_stacked(self, chosen: ExecutorSettings) -> str | None:
        """Why clients train one by one, unless that was asked for or is faster."""
        if (chosen.stack or 0) > 1 or self._asked.stack == 0 or self._asked.channels_last:
            return None
        refused = (f"{way}: {reason}" for way, reason in self.refused.items() if "stacks" in way)
        reason = self._unstackable or next(refused, None)
        return reason and f"Clients train one by one: {reason}."

    def why_not_native(self, chosen: ExecutorSettings) -> str | None:
        """Why PyTorch computes gradients, unless that was asked for or is faster."""
        if chosen.native or self._asked.native is False or self._asked.channels_last:
            return None
        refused = (f"{way}: {reason}" for way, reason in self.refused.items() if "native" in way)
        short = "the run is too short for a choice to pay" if self._run < _NOTICEABLE else None
        slower = "it is faster here" if np.isfinite(self._native_seconds) else short
        reason = self._not_native or next(refused, slower)
        return reason and f"PyTorch computes the gradients: {reason}."

    @property
    def _not_native(self) -> str | None:
        """Why the compiled kernels are of no use, if there is a reason."""
        if self._workshop.rule.features == "used":
            return self._workshop.not_native or "the method looks at features in every step"
        return self._workshop.not_native

    @property
    def _clock(self) -> Callable[[], float]:
        """For what one thread does: its own time on the processor, which other work on the machine hardly changes."""
        alone = torch.get_num_threads() == 1 and not self._orders[0].start.is_cuda
        return thread_time if alone else perf_counter

    @cached_property
    def _unstackable(self) -> str | None:
        return cannot_stack(self._workshop)

    def ranking(self) -> Iterator[ExecutorSettings]:
        """The candidates, the fastest first; what is not asked for is not measured."""
        asked = self._asked
        left_open = asked.kind == "auto" and not (asked.stack or asked.native or asked.channels_last)
        if left_open and self._run < _NOTICEABLE:
            yield SERIAL
            return
        ruled_out = asked.native is False or asked.channels_last or (self._not_native and not asked.native)
        native = [] if ruled_out else self._native()
        if asked.native:
            yield from native
        elif native and self._is_clear():
            yield from native
            yield from self._torch()
        elif native:
            yield from sorted([*native, *self._torch()], key=self.seconds.__getitem__)
        else:
            yield from self._torch()

    def _is_clear(self) -> bool:
        """Whether native training is so much faster that nothing else need be tried; all on one core."""
        share = self._native_seconds / self.seconds[SERIAL]
        if share > _CLEAR or share <= _OBVIOUS or not self._workshop.dense or self._asked.stack == 0:
            return bool(share <= _CLEAR)
        # Closed forms in stacks may be several times as fast as one by one.
        stack = self._asked.stack or min(stack_limit(self._workshop), self._share)
        best = self._measured([SERIAL, ExecutorSettings(kind="vectorised", stack=stack).completed])[0]
        return self._native_seconds <= self.seconds[best]

    def _native(self) -> list[ExecutorSettings]:
        """Ways to train by the compiled kernels, the fastest first."""
        asked, workshop = self._asked, self._workshop
        workers = min(asked.workers or cores(), len(self._orders))
        limit = min(len(self._orders), max(workers, native_limit(workshop)))
        threads = ExecutorSettings(kind="threads", stack=asked.stack or limit, workers=asked.workers).completed
        in_threads = asked.kind in ("auto", "threads") and asked.stack != 0
        if in_threads and (workshop.trains_whole_jobs or asked.kind == "threads"):
            # A stack has no bearing on how long whole jobs take, and each is trained on one core.
            some = int(np.clip(_TRIAL * self._work.sum() / self.seconds[SERIAL], 1, limit))
            try:
                self._native_seconds = self.measure(_in_process(some))
            except Exception as error:
                self.refused[threads.label] = failure(error)
                return []
            self.seconds[threads] = self._native_seconds / workers
            return [threads]
        share = min(limit, self._share)
        sizes = [share, -(-share // 4), 1] if asked.stack is None and asked.kind != "serial" else [asked.stack or 0]
        ranked = self._measured([_in_process(size) for size in dict.fromkeys(sizes)])
        if not ranked:
            return []
        self._native_seconds = self.seconds[ranked[0]]
        if asked.kind in ("serial", "vectorised"):
            return ranked
        shared = [self._shared(way) for way in ranked]
        if asked.kind in APART:
            return shared
        rivals = shared[:1] if self._workers > 1 else ranked[:1]
        return self._compared([*rivals, threads] if in_threads else rivals, ranked[0], len(self._orders))

    def _torch(self) -> list[ExecutorSettings]:
        """Ways to train by PyTorch, the fastest first."""
        asked = self._asked
        ranked = self._measured(self._ways())
        # A stack larger than a worker's share would leave somebody idle.
        shared = [self._shared(way) for way in ranked if (way.stack or 0) <= self._share or asked.stack]
        if asked.kind in APART:
            return shared or [self._shared(way) for way in ranked]
        if asked.kind == "vectorised" or self._workers == 1 or not ranked:
            return ranked
        return self._finals(ranked, shared)

    def _measured(self, ways: Sequence[ExecutorSettings]) -> list[ExecutorSettings]:
        """Those for which there is time, each measured in this process, the fastest first."""
        for way in ways:
            if way not in self.seconds and (way is ways[0] or self._affordable(2 * (way.stack or 1), SERIAL)):
                try:
                    self.seconds[way] = self.measure(way)
                except Exception as error:  # one by one went well, so it is this way that fails
                    self.refused[way.label] = failure(error)
        return sorted((way for way in ways if way in self.seconds), key=self.seconds.__getitem__)

    def _finals(self, ranked: list[ExecutorSettings], shared: list[ExecutorSettings]) -> list[ExecutorSettings]:
        """The best on a part of a whole round, in this process and in workers; without the time, workers are best."""
        rivals = [*ranked[:1], *shared[:_FINALISTS]]
        least = min(len(self._orders), 2 * self._workers * max(way.stack or 1 for way in rivals))
        if not self._affordable(2 * least * len(rivals), ranked[0]):
            for way in ranked:
                self.seconds.setdefault(self._shared(way), self.seconds[way] / self._workers)
            return [*shared, *ranked]
        return [*self._compared(rivals, ranked[0], least), *(way for way in ranked if way not in rivals)]

    def _compared(
        self, rivals: Sequence[ExecutorSettings], known: ExecutorSettings = SERIAL, least: int | None = None
    ) -> list[ExecutorSettings]:
        """The rivals on a part of a whole round, the fastest first; as fast as one that is known, or faster."""
        step_seconds = self.seconds[known] / self._work.sum()
        count = max(least or 2 * (self._asked.workers or cores()), int(_REHEARSAL / step_seconds))
        measured = self._rehearse(rivals, self._orders[:count], step_seconds)
        self.seconds |= measured
        return sorted(measured, key=measured.__getitem__)

    def _affordable(self, steps: int, way: ExecutorSettings) -> bool:
        """Whether there is time for so many steps of a client, as fast as that way."""
        return bool(perf_counter() + steps * self.seconds[way] / self._work.sum() < self._until)

    def _ways(self) -> list[ExecutorSettings]:
        """Every way to train in this process that fits what was asked for, the most promising first."""
        workshop, asked = self._workshop, self._asked
        ways = []
        if asked.kind != "vectorised" and not asked.stack:
            formats = [False, True] if any(part.dim() == 4 for part in workshop.module.parameters()) else [False]
            formats = formats if asked.channels_last is None else [asked.channels_last]
            ways += [ExecutorSettings(kind="serial", channels_last=each).completed for each in formats]
        if asked.stack == 0 or asked.channels_last or (ways and not workshop.dense and self._run < _LONG):
            return ways
        if self._unstackable:
            if not ways:
                raise _refusal(asked, self._unstackable)
            return ways
        limit = min(len(self._orders), stack_limit(workshop))
        share = min(limit, self._share)
        sizes = [share, limit, *(-(-share // part) for part in _PARTS)]
        for size in [asked.stack] if asked.stack else dict.fromkeys(sizes):
            ways.append(ExecutorSettings(kind="vectorised", stack=size).completed)
        return ways

    def _shared(self, way: ExecutorSettings) -> ExecutorSettings:
        """The same in workers."""
        kind = self._asked.kind if self._asked.kind in APART else "processes"
        of_workers = {name: getattr(self._asked, name) for name in ("workers", "address", "cpus", "gpus", "memory")}
        return way.model_copy(update={"kind": kind, **of_workers})

    def measure(self, way: ExecutorSettings) -> float:
        """What a round would take one way, from a few steps of a typical stack."""
        stacks = plan(self._orders, self._workshop.data, self._workshop.local, way.stack or None)
        trainer = self._workshop.trainer(way)

        def each(number: int, limit: int) -> float:
            """Seconds a step of one client, of a stack whose data no cache holds."""
            rows = stacks[(len(stacks) // 2 + number) % len(stacks)]
            seconds = _time(lambda: trainer([self._orders[row] for row in rows], limit), self._clock)
            return float(seconds / self._work[rows].clip(max=limit).sum())

        first = each(0, 1)
        clients = len(stacks[len(stacks) // 2])
        if first * clients < 10 * _TRIAL:
            first = each(1, 1)  # the very first had to warm up
            limit = int(np.clip(_TRIAL / (first * clients), 1, self._work.max()))
            first = min(each(2 + number, limit) for number in range(3))
        return float(first * self._work.sum())

    def _rehearse(
        self, rivals: Sequence[ExecutorSettings], orders: Sequence[Order], step_seconds: float
    ) -> dict[ExecutorSettings, float]:
        """What a round would take each rival, from as many steps of these orders as time allows, in turns."""
        work = _work(self._workshop, orders)
        limit = int(np.clip(_REHEARSAL / (step_seconds * len(orders)), 1, work.max()))
        times: dict[ExecutorSettings, list[float]] = {settings: [] for settings in rivals}
        executors = {settings: self._workshop.executor(settings) for settings in rivals}
        try:
            for some, count in ((orders[:1], 1), (orders, limit), (orders, limit)):  # at first, workers start
                for settings, taken in [*times.items()]:
                    if any(seconds >= _STEADY for seconds in taken[1:]):
                        continue
                    train = executors[settings].train
                    try:
                        taken.append(_time(lambda t=train, s=some, n=count: t(s, n)))  # type: ignore[misc]
                    except Exception as error:  # which may be the rule's own, in this process
                        self.refused[settings.label] = str(error) if isinstance(error, FedkeelError) else failure(error)
                        del times[settings]
        finally:
            for executor in executors.values():
                executor.close()
        share = float(self._work.sum() / work.clip(max=limit).sum())
        return {settings: min(seconds[1:]) * share for settings, seconds in times.items()}


def _work(workshop: Workshop, orders: Sequence[Order]) -> NDArray[np.int64]:
    """Steps of each order."""
    sizes = workshop.data.sizes[[order.client for order in orders]]
    return steps(sizes, np.array([order.epochs for order in orders]), workshop.local)[1]


def _in_process(stack: int) -> ExecutorSettings:
    """The compiled kernels on one core."""
    return ExecutorSettings(kind="vectorised" if stack else "serial", stack=stack, native=True).completed


def _time(work: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    begun = clock()
    work()
    return clock() - begun


def _refusal(asked: ExecutorSettings, reason: str) -> InputError:
    stacked = asked.stack or asked.kind == "vectorised"
    instead = "set executor.channels_last=false"
    if asked.native:
        instead = "set executor.native=false"
        if asked.kind == "threads":
            instead = "use kind serial, vectorised or processes"
    elif stacked:
        instead = "set executor.stack=0 and a kind other than vectorised"
    return InputError(f"executor: {asked.label} cannot be used with this model and method: {reason}; {instead}")
