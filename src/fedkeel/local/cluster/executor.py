"""The executor that trains on the machines of a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.federated import FederatedData, Held
from fedkeel.errors import FedkeelError, InputError, MishapError, words
from fedkeel.local.cluster.freeze import by_value, thaw
from fedkeel.local.cluster.leases import lease, release
from fedkeel.local.cluster.pool import TRIES, Kept, Piece, Seat
from fedkeel.local.cluster.worker import Reply, Shipped, Stack, Stuck
from fedkeel.local.evaluation import BATCH, Evaluator, Part, together
from fedkeel.local.executor import Score
from fedkeel.local.executors.inprocess import put
from fedkeel.local.executors.memory import Lender
from fedkeel.local.executors.packing import pack
from fedkeel.local.executors.processes import clients_in_words
from fedkeel.local.executors.worker import LESS_MEMORY, Failed
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.local.trainer import plan
from fedkeel.local.work import steps
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Columns, Order, Trained, add

_keys = count(1)
_SHARES = 4
"""Into so many calls per worker is a test divided."""
SHORTEST = 0.02
"""Seconds that a call takes at least, unless workers would have nothing to do."""
LARGEST = 32 << 20
"""Bytes that come back with one call, unless a single stack has more."""


class OnCluster:
    """Workers get stacks of clients, call by call; who trains which does not change a result.

    Data and model go to every machine once, and so does every version of the weights. Sums over clients are added up by
    the workers, then on each machine, so that one tensor per machine comes back.
    """

    def __init__(
        self, bare: object, data: FederatedData, local: LocalSettings, evaluator: Evaluator, settings: ExecutorSettings
    ) -> None:
        """`bare` is the workshop without its data."""
        self._data, self._local, self._evaluator = data, local, evaluator
        self._stack = settings.stack or None
        self._lender = Lender(shared=False)
        self._calls = count(1)
        self._pool = lease(settings)
        self._key = next(_keys)
        self._open = True
        self._pace = 0.0
        """Seconds of a step in the last round, as far as that is known."""
        self._row_bytes: dict[tuple[bool, bool], int] = {}
        """Bytes that came back for each client in the last round of its kind; weights alone until that is known."""
        try:
            shop, kept = self._ship(bare), self._pool.store.put(data)
            numbers = torch.get_num_threads(), torch.get_float32_matmul_precision()
            self._shipped = Shipped(shop, kept, settings, *numbers)
        except BaseException:
            self.close()
            raise

    def _ship(self, bare: object) -> Any:
        cloudpickle = self._pool.ray.cloudpickle
        try:
            with by_value(cloudpickle):
                return self._pool.ray.put(cloudpickle.dumps(bare))
        except Exception as error:
            raise InputError(
                f"executor.kind=ray: this model or method cannot be sent to other machines ({words(error)}); define it "
                "at the top level of a module, without open files, locks or lambdas"
            ) from error

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        orders = Orders.of(orders)
        stacks = plan(orders, self._data, self._local, self._stack)
        packed = [pack(orders.pick(np.array(rows))) for rows in stacks]
        uses = Counter(id(tensor) for _, tensors in packed for tensor in tensors)
        work = self._steps(orders, stacks)
        columns, left = Columns(), self._pieces(orders, stacks, work)
        sums: Columns | None = None
        seconds, done, adds_up = 0.0, 0.0, set[bool]()
        for _ in range(TRIES):
            call, kept = next(self._calls), Kept()

            def submit(seat: Seat, piece: Piece, call: int = call) -> Any:
                tensors = [tensor for place in piece for tensor in packed[place][1]]
                numbers, parcel = self._pool.store.parcel(tensors, lambda tensor: uses[id(tensor)] > 1, seat.held)
                each = iter(numbers)
                asked = [Stack(packed[place][0], [*islice(each, len(packed[place][1]))]) for place in piece]
                return seat.actor.train.remote(*self._shop(seat), asked, parcel, limit, call)

            def doing(piece: Piece) -> str:
                return f"training {clients_in_words(orders, [row for place in piece for row in stacks[place]])}"

            for piece, seat, reply in self._pool.work(left, submit, doing, kept):
                if isinstance(reply, Stuck):
                    self._pool.forget()
                    raise reply.failed.error(doing([piece[reply.place]]))
                assert isinstance(reply, Reply)
                made: list[Columns] = thaw(reply.rows)
                columns = columns or self._room(made[0], orders)
                for place, part in zip(piece, made, strict=True):
                    put(part, stacks[place], columns)
                adds_up.add(reply.sums)
                if len(adds_up) > 1:
                    self._pool.forget()
                    raise FedkeelError(
                        "the client rule sends sums for some clients and none for others; send the same sums for all "
                        "clients"
                    )
                if reply.sums:
                    kept.setdefault(seat, []).extend(piece)
                seconds, done = seconds + reply.seconds, done + sum(work[place] for place in piece)
            more, lost = self._delivered(call, kept)
            sums, left = add(sums, more) if more else sums, [(place,) for place in lost]
            self._pool.losses.repeated += len(left)
            if not left:
                break
        else:
            raise MishapError(
                f"workers of the cluster died {TRIES} times while they added up what clients send; out of memory? "
                f"{LESS_MEMORY}"
            )
        self._pace = seconds / done if done else 0.0
        self._row_bytes[_kind(orders)] = sum(tensor[0].nbytes for tensor in columns.values())
        return Trained(columns | (sums or {}))

    def _steps(self, orders: Orders, stacks: Sequence[Sequence[int]]) -> list[float]:
        """Of each stack."""
        _, each = steps(self._data.sizes[orders.client], orders.epochs, self._local)
        return [float(each[rows].sum()) for rows in stacks]

    def _pieces(self, orders: Orders, stacks: Sequence[Sequence[int]], work: Sequence[float]) -> list[Piece]:
        """Stacks that go with one call: many at first, as calls take time, and single ones at the end.

        The longest stacks come first. So workers end at about the same time, even if some are faster than others. But
        calls are not shorter than `SHORTEST`, as far as the last round tells.
        """
        size = self._row_bytes.get(_kind(orders), orders.start[0].nbytes)
        most = [max(1, LARGEST // (size * len(rows) or 1)) for rows in stacks]
        pieces, piece, rest = list[Piece](), list[int](), sum(work)
        share = done = 0.0
        for place in range(len(stacks)):
            if len(pieces) % self._pool.size == 0 and not piece:  # the next call of each worker
                least = SHORTEST / self._pace if self._pace else 0.0
                share = min(rest / self._pool.size, max(rest / (2 * self._pool.size), least))
            piece.append(place)
            done += work[place]
            if done >= share or len(piece) >= most[place]:
                pieces.append(piece)
                rest -= done
                piece, done = [], 0.0
        return [*pieces, piece] if piece else pieces

    def _shop(self, seat: Seat) -> tuple[int, Shipped | None]:
        """The key of the workshop, and the workshop itself for who does not have it yet."""
        if self._key in seat.shops:
            return self._key, None
        seat.shops.add(self._key)
        return self._key, self._shipped

    def _room(self, part: Columns, orders: Orders) -> Columns:
        """Columns for all orders, like those of a part."""
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in part.items()} | {"lr": (int(orders.epochs.max()),)}
        return self._lender.lend({n: ((len(orders), *shapes[n]), tensor.dtype) for n, tensor in part.items()})[1]

    def _delivered(self, call: int, kept: Kept) -> tuple[Columns | None, list[int]]:
        """(The sums over all stacks of a call, the stacks whose sums were lost on the way).

        The workers of a machine add theirs up one after the other, and the last one sends them.
        """
        by_machine: dict[str, list[Seat]] = {}
        for seat in kept:
            by_machine.setdefault(seat.node, []).append(seat)
        chains = {}
        for node, seats in by_machine.items():
            ref = None
            for seat in seats:
                ref = seat.actor.deliver.remote(call, ref)
            chains[ref] = node
        sums: Columns | None = None
        lost = list[int]()
        for ref, node in chains.items():
            told = self._pool.answer(ref, by_machine[node])
            if isinstance(told, Failed):
                raise told.error("adding up what clients send")
            if told is None:
                lost += [place for seat in by_machine[node] for place in kept[seat]]
            else:
                sums = add(sums, thaw(told))
        return sums, sorted(lost)

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None, on: Held = "test") -> Score:
        parts = self._tested(w, buffers, samples, on, not self._evaluator.task.adds_up)
        return self._evaluator.joined(parts, samples, on)

    def predict(self, w: Tensor, buffers: Tensor, on: Held = "test") -> Tensor:
        return together(self._tested(w, buffers, None, on, True))

    def _tested(self, w: Tensor, buffers: Tensor, samples: Tensor | None, on: Held, outputs: bool) -> list[Part]:
        """What comes of every batch."""
        total = self._evaluator.count(samples, on)
        batches = -(-total // BATCH)
        if batches <= self._pool.size:  # not worth a message
            return self._evaluator.parts(w, buffers, samples, range(batches), on, outputs)
        tensors = [w, buffers, torch.arange(total) if samples is None else samples]
        shares = [part.tolist() for part in np.array_split(np.arange(batches), min(batches, _SHARES * self._pool.size))]

        def submit(seat: Seat, piece: Piece) -> Any:
            numbers, parcel = self._pool.store.parcel(tensors, lambda _: True, seat.held)
            return seat.actor.test.remote(*self._shop(seat), numbers, parcel, shares[piece[0]], on, outputs)

        found: dict[int, list[Part]] = {}
        pieces = [[place] for place in range(len(shares))]
        for piece, _, reply in self._pool.work(pieces, submit, lambda _: "testing the model"):
            if isinstance(reply, Failed):
                self._pool.forget()
                raise reply.error("testing the model")
            found[piece[0]] = reply
        return [part for place in range(len(shares)) for part in found[place]]

    def report(self) -> dict[str, Any]:
        return {"ray": self._pool.report()}

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        there = self._pool.ray.is_initialized()  # if not, a call would start another cluster
        try:
            for seat in self._pool.seats if there else ():
                seat.shops.discard(self._key)
                seat.actor.forget.remote(self._key)
        finally:
            release(self._pool)
            self._lender.close()


def _kind(orders: Orders) -> tuple[bool, bool]:
    """What decides how much comes back: whether the orders are a survey, and whether only their mean is wanted."""
    return orders.survey[0], orders.share is not None
