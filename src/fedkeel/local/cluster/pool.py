"""The workers of this process on a cluster: one crew for all its executors, and what to do when some are lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from fedkeel.errors import InputError, MishapError, counted
from fedkeel.local.cluster.connection import Connection, Wish
from fedkeel.local.cluster.losses import Losses, kinds, last_line
from fedkeel.local.cluster.store import Store
from fedkeel.local.cluster.worker import Worker
from fedkeel.local.executors.worker import LESS_MEMORY
from fedkeel.local.native import library

TRIES = 3
"""So often is the same work begun if workers die of it."""
LEAVE_SECONDS = 3.0
"""So long workers of others may take to leave a cluster that is not full."""
FULL_SECONDS = 10.0
"""So long a full cluster may take to get room for a worker."""
START_SECONDS = 60.0
"""So long may workers take to start."""
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
        wish, nodes = self.wish, self.connection.nodes
        room = sum(node.room(wish.resources) for node in nodes)
        if room < (wish.workers or 1):
            raise InputError(
                f"executor: the cluster has too little for {counted(wish.workers or 1, 'worker')} of {wish.words}: it "
                f"has {self._has()}, room for {room}; set executor.workers, cpus, gpus or memory to less, or add "
                "machines"
            )
        wanted = min(self._free(wish.workers or 1, room), wish.workers or room)
        self._start(wanted)
        begun = monotonic()
        while self._coming and monotonic() < begun + START_SECONDS:
            self.seats += self._arrived(_TICK)
            if wish.workers is None and self.seats and monotonic() > begun + FULL_SECONDS:
                break  # the others join later
        if len(self.seats) < (wish.workers or 1):
            raise MishapError(
                f"executor.kind=ray: only {len(self.seats)} of {counted(wanted, 'worker')} of {wish.words} could be "
                f"started within {START_SECONDS:.0f} seconds ({self._has()}); ask for fewer, or try later"
            )
        return wanted

    def _free(self, needed: int, room: int) -> int:
        """How many workers fit into what others have left; those of a run that has just ended leave a moment later."""
        begun = monotonic()
        while (free := int(self.connection.free(self.wish.resources) + 1e-9)) < room:
            passed = monotonic() - begun
            if free >= needed and (self.wish.workers or passed > LEAVE_SECONDS):
                break
            if passed > FULL_SECONDS:
                raise MishapError(
                    f"executor.kind=ray: the cluster is full, as others use it ({self._has()}), and "
                    f"{counted(needed, 'worker')} of {self.wish.words} {'is' if needed == 1 else 'are'} needed; try "
                    "later, ask for fewer, or add machines"
                )
            sleep(_TICK)
        return free

    def _has(self) -> str:
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        parts = [f"{free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs free"]
        if total.get("GPU") or self.wish.gpus:
            parts.append(f"{free.get('GPU', 0):g} of {total.get('GPU', 0):g} GPUs free")
        if self.wish.memory:
            parts.append(f"{free.get('memory', 0) / 1e9:.3g} of {total.get('memory', 0) / 1e9:.3g} GB free")
        return ", ".join(parts)

    def _start(self, count: int) -> None:
        needs = self.wish.resources
        options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0), "max_restarts": 0}
        if "memory" in needs:
            options["memory"] = int(needs["memory"])
        made = self.ray.remote(Worker).options(scheduling_strategy="SPREAD", **options)
        loaded = library.load()
        environment = {"FEDKEEL_NATIVE": library.mode()} | ({"FEDKEEL_ISA": loaded.isa} if loaded else {})
        for _ in range(count):
            actor = made.remote(environment, "cuda" if self.wish.gpus else "cpu")
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
                seats.append(Seat(actor, *self.ray.get(ref)))
            except self._lost as error:
                if not self.size:  # at the start: something is wrong with all of them
                    raise MishapError(
                        f"executor.kind=ray: a worker could not be started: {last_line(error)}"
                    ) from error
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
        self._replace()
        while todo or flying:
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
