"""The workers of this process on a cluster: one crew for all its executors, and what to do when some are lost."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from fedkeel.errors import InputError, MishapError, counted
from fedkeel.local.cluster import alike
from fedkeel.local.cluster.connection import Connection
from fedkeel.local.cluster.losses import Losses, kinds, last_line
from fedkeel.local.cluster.store import Store
from fedkeel.local.cluster.wish import Wish
from fedkeel.local.cluster.worker import Worker
from fedkeel.local.executors.worker import LESS_MEMORY
from fedkeel.local.native import library

TRIES = 3
"""So often is the same work begun if workers die of it."""
START_SECONDS = 60.0
"""So long may the next worker take to start."""
LATE_SECONDS = 10.0
"""Who has not started by then may join later."""
AGAIN_SECONDS = 5.0
"""So long after a loss, others are started in the place of those that are gone."""
DEPTH = 2
"""Calls that a worker is given at a time, so that it need not wait for the next one."""
_TICK = 0.5


@dataclass(eq=False)
class Seat:
    """A worker, as this process sees it."""

    actor: Any
    node: str
    process: int
    held: set[int] = field(default_factory=set)
    """The numbers of the tensors that it has when it begins the next call."""
    shops: set[int] = field(default_factory=set)
    """The keys of the workshops that it has then."""


Piece = Sequence[int]
"""Numbers of what is done in one call."""
Submit = Callable[[Seat, Piece], Any]
"""Asks a worker for a piece of work; returns a reference to the answer."""
Kept = dict[Seat, list[int]]
"""Numbers of what each worker still holds something of: it is done again if the worker is lost."""


class Pool:
    """Workers that stay; those that are lost are replaced if there is room, and nobody waits for that."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.losses = Losses()
        self.holders = 0
        self._coming: dict[Any, Any] = {}
        """Workers that are being started, by the answer that each will give."""
        self._again = 0.0
        self._why = ""
        """Why the last worker that has come was not taken."""
        self.seats: list[Seat] = []
        self.size = 0
        self.connection = Connection(wish)
        self.ray = self.connection.ray
        self.store = Store(self._put)
        self._lost = kinds(self.ray)
        try:
            self.size = self._first()
        except BaseException:
            self.close()
            raise

    def _put(self, value: object) -> Any:
        try:
            return self.ray.put(value)
        except self.ray.exceptions.RayError as error:
            raise MishapError(
                f"executor.kind=ray: Ray's store has no room ({last_line(error)}); give it more memory or disk "
                "(`ray start --object-store-memory=BYTES`)"
            ) from error

    # Who is there.

    def _first(self) -> int:
        """Start as many workers as were asked for, or as there is room for; returns how many that is."""
        wish, room = self.wish, self.connection.room(self.wish.resources)
        if room < (wish.workers or 1):
            raise InputError(
                f"executor: the cluster has too little for {counted(wish.workers or 1, 'worker')} of {wish.words}: it "
                f"has {self.connection.has(wish)}, room for {room}; set executor.workers, cpus, gpus or memory to "
                "less, or add machines"
            )
        wanted = min(self.connection.wait_for_room(wish, wish.workers or 1), wish.workers or room)
        self._start(wanted)
        begun = last = monotonic()
        while self._coming and monotonic() < last + START_SECONDS:
            if come := self._arrived(_TICK):
                self.seats += come
                last = monotonic()
            if wish.workers is None and self.seats and monotonic() > begun + LATE_SECONDS:
                break  # the others join later
        if len(self.seats) < (wish.workers or 1):
            raise MishapError(
                f"executor.kind=ray: only {len(self.seats)} of {counted(wanted, 'worker')} of {wish.words} could be "
                f"started, and no other within {START_SECONDS:.0f} seconds ({self.connection.has(wish)}); ask for "
                "fewer, or try later"
            )
        return wanted

    def _start(self, count: int) -> None:
        needs = self.wish.resources
        options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0), "max_restarts": 0}
        if "memory" in needs:
            options["memory"] = int(needs["memory"])
        made = self.ray.remote(Worker).options(scheduling_strategy="SPREAD", **options)
        loaded = library.load()
        environment = {"FEDKEEL_NATIVE": library.mode()} | ({"FEDKEEL_ISA": loaded.isa} if loaded else {})
        for _ in range(count):
            actor = made.remote(environment, os.getcwd(), "cuda" if self.wish.gpus else "cpu")
            self._coming[actor.where.remote()] = actor

    def _arrived(self, patience: float) -> list[Seat]:
        """Workers that have started; one that could not is given up."""
        ready, _ = self.ray.wait([*self._coming], num_returns=1, timeout=patience)
        if ready and len(self._coming) > 1:
            ready, _ = self.ray.wait([*self._coming], num_returns=len(self._coming), timeout=0)
        seats = []
        for ref in ready:
            actor = self._coming.pop(ref)
            try:
                node, host, process, facts = self.ray.get(ref)
                self._why = alike.objection(host, facts) or ""
            except self._lost as error:
                self._why = last_line(error)
            if not self._why:
                seats.append(Seat(actor, node, process))
                continue
            self._kill(actor)
            if not self.size:  # at the start: something is wrong with all of them
                raise MishapError(f"executor.kind=ray: a worker could not be started: {self._why}")
        return seats

    def _give_up_starting(self) -> None:
        for actor in self._coming.values():
            self._kill(actor)
        self._coming.clear()

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):
            self.ray.kill(actor)

    # Work.

    def work(
        self, pieces: Sequence[Piece], submit: Submit, doing: Callable[[Piece], str], kept: Kept | None = None
    ) -> Iterator[tuple[Piece, Seat, Any]]:
        """Have all pieces done; yields (a piece, who did it, the answer) as they come.

        What is lost with a worker is done again by the others, one number at a time, also what it still held (`kept`).
        So the same number may come twice.
        """
        todo, tries = deque(pieces), Counter[int]()
        flying: dict[Any, tuple[Piece, Seat]] = {}
        while todo or flying:
            self._replace()
            try:
                self._hand_out(todo, flying, submit)
            except BaseException:  # as a run is stopped: what workers have got is not known
                self.forget()
                raise
            if not self.seats:
                self._wait_for_somebody()
                continue
            for ref in self._answers(flying):
                if ref not in flying:  # it went with another one of the same worker
                    continue
                piece, seat = flying[ref]
                try:
                    answer = self.ray.get(ref)
                except self._lost as error:
                    # The first of a worker's pieces is the one that it was doing.
                    own = [each for each, other in flying.values() if other is seat]
                    flying = {r: told for r, told in flying.items() if told[1] is not seat}
                    self._part_with(seat)
                    self._blame(own[0], tries, doing, error)
                    back = sorted({*(number for each in own for number in each), *(kept or {}).pop(seat, [])})
                    todo.extendleft((number,) for number in reversed(back))
                    self.losses.repeated += len(back) if kept is not None else 0
                    continue
                except self.ray.exceptions.RayError as error:
                    self.forget()
                    raise MishapError(f"{doing(piece)} failed on the cluster: {last_line(error)}") from error
                del flying[ref]
                yield piece, seat, answer

    def answer(self, ref: Any, seats: Sequence[Seat]) -> Any:
        """One answer that these workers have made together; None if one of them is lost."""
        while not self.ray.wait([ref], timeout=_TICK)[0]:
            pass
        try:
            return self.ray.get(ref)
        except self._lost:
            for seat in seats:
                try:
                    self.ray.get(seat.actor.where.remote())
                except self._lost:
                    self._part_with(seat)
            return None

    def forget(self) -> None:
        """What workers have is not known, as a call has failed."""
        for seat in self.seats:
            seat.held.clear()
            seat.shops.clear()

    def _hand_out(self, todo: deque[Piece], flying: dict[Any, tuple[Piece, Seat]], submit: Submit) -> None:
        load = Counter(seat for _, seat in flying.values())
        for depth in range(1, DEPTH + 1):
            for seat in self.seats:
                # The last pieces go to those who have nothing to do.
                if todo and load[seat] < depth and (depth == 1 or len(todo) > len(self.seats)):
                    piece = todo.popleft()
                    flying[submit(seat, piece)] = piece, seat
                    load[seat] += 1

    def _answers(self, flying: dict[Any, tuple[Piece, Seat]]) -> list[Any]:
        """What has come, in the order in which it was asked for."""
        refs = [*flying, *self._coming]
        ready, _ = self.ray.wait(refs, num_returns=1, timeout=_TICK)
        if ready and len(refs) > 1:
            ready, _ = self.ray.wait(refs, num_returns=len(refs), timeout=0)
        if any(ref in self._coming for ref in ready):
            self.seats += self._arrived(0)
        come = {*ready}
        return [ref for ref in flying if ref in come]

    def _part_with(self, seat: Seat) -> None:
        """A worker is gone."""
        self.seats.remove(seat)
        self._kill(seat.actor)
        self.losses.workers += 1
        self._again = monotonic() + AGAIN_SECONDS

    def _blame(self, piece: Piece, tries: Counter[int], doing: Callable[[Piece], str], error: Exception) -> None:
        """If workers die one after the other while they do the same, that is at fault, not the machines."""
        if len(piece) > 1:  # which of them is not known
            return
        tries[piece[0]] += 1
        if tries[piece[0]] >= TRIES:
            raise MishapError(
                f"{TRIES} workers of the cluster died one after the other while {doing(piece)} ({last_line(error)}); "
                f"out of memory? {LESS_MEMORY}"
            )

    def _replace(self) -> None:
        """Start others in the place of those that are gone, without waiting for them."""
        missing = self.size - len(self.seats) - len(self._coming)
        if missing > 0 and monotonic() >= self._again:
            self._again = monotonic() + START_SECONDS
            self._start(missing)

    def _wait_for_somebody(self) -> None:
        """All workers are gone: wait until one has been replaced."""
        end = monotonic() + START_SECONDS
        while not self.seats and monotonic() < end:
            if not self._coming:
                self._start(1)
            self.seats += self._arrived(_TICK)
            sleep(0 if self.seats else _TICK)
        if not self.seats:
            self._give_up_starting()
            raise MishapError(
                f"all workers of the cluster are lost, and no other could be started within {START_SECONDS:.0f} seconds"
                + (f": {self._why}" if self._why else "")
            )

    # What a user is told.

    @property
    def words(self) -> str:
        """What was found."""
        return f"Ray: {counted(self.size, 'worker')} of {self.wish.words} on {self.connection.words}"

    def report(self) -> dict[str, Any]:
        """For the summary of a run."""
        with suppress(Exception):
            gone = {node.id for node in self.connection.nodes} - {node.id for node in self.connection.alive()}
            return {
                "machines": len(self.connection.nodes),
                "workers": self.size,
                "found": self.words,
                "machines_lost": len(gone),
                "workers_lost": self.losses.workers,
                "stacks_repeated": self.losses.repeated,
            }
        return {}

    def close(self) -> None:
        """Let everybody go."""
        for seat in self.seats:
            self._kill(seat.actor)
        self._give_up_starting()
        self.seats = []
        self.store.clear()
        self.connection.close()
