"""The clients at work: what they were sent, what has come back, and the versions of the model that they work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel.methods.types import Weighting, mean_shares
from fedkeel.server.events import Arrived, ArrivedTogether
from fedkeel.server.gate import Claim, Claims
from fedkeel.server.stateful import Stateful
from fedkeel.server.trips import Trip, Trips
from fedkeel.wire.many import Numbers, Orders
from fedkeel.wire.orders import Order, Trained


@dataclass(slots=True, eq=False)
class Sent:
    """A job as the server sent it."""

    order: Order
    draws: int | None
    """How often the client was drawn, where that may be more than once."""
    bytes_down: int
    bytes_up: int
    """Bytes beside the upload that is taken in: answers to surveys, and an upload that was lost."""


@dataclass(slots=True, eq=False)
class Dispatch:
    """Jobs as the server sent them together, in columns [m]; see `Sent`."""

    orders: Orders
    draws: Numbers | None
    bytes_down: Numbers
    bytes_up: Numbers

    @classmethod
    def of(cls, jobs: Sequence[Sent]) -> Dispatch:
        """Single jobs put together."""
        draws = [job.draws for job in jobs if job.draws is not None]
        down, up = ([getattr(job, name) for job in jobs] for name in ("bytes_down", "bytes_up"))
        orders = Orders.of([job.order for job in jobs])
        return cls(orders, np.array(draws) if draws else None, np.array(down), np.array(up))

    def sent(self, row: int) -> Sent:
        """One of them."""
        draws = None if self.draws is None else self.draws.item(row)
        return Sent(self.orders[row], draws, self.bytes_down.item(row), self.bytes_up.item(row))

    def claim(self, row: int) -> Claim:
        """What the upload of one of them must claim to be."""
        return Claim(self.orders.job.item(row), self.orders.version.item(row))

    def claims(self, rows: Numbers) -> Claims:
        """The same of many."""
        return self.orders.job[rows], self.orders.version[rows]


@dataclass(slots=True, eq=False)
class Single:
    """A job whose upload has arrived, and whose claims have passed the gate."""

    event: Arrived
    jobs: Dispatch
    row: int
    """Its row in the dispatch."""
    order: Order
    """The job as it was done."""
    trip: Trip


@dataclass(slots=True, eq=False)
class Many:
    """The same for several jobs of one dispatch."""

    event: ArrivedTogether
    jobs: Dispatch
    rows: Numbers
    """Their rows in the dispatch."""


@dataclass(slots=True, eq=False)
class Landed:
    """Jobs whose uploads are to be taken in now, in columns [m]."""

    orders: Orders
    """The jobs as they were done."""
    trips: Trips
    nbytes: list[int]
    """Bytes of the uploads."""
    draws: list[int] | None
    """As in `Sent`."""
    bytes_down: list[int]
    bytes_up: list[int]
    uploads: list[Trained]
    """The contents of the uploads, if those came with them; otherwise empty."""

    @classmethod
    def of(cls, arrived: Sequence[Single | Many]) -> Landed:
        """What has arrived, by job."""
        singles = [each for each in arrived if isinstance(each, Single)]
        if len(singles) == len(arrived) == 1:
            return cls._of_singles(singles)
        whole = cls._of_singles(singles) if singles else None
        several: dict[int, list[Many]] = {}
        for each in arrived:
            if isinstance(each, Many):
                several.setdefault(id(each.event.uploads), []).append(each)
        for parts in several.values():
            whole = cls._of_many(parts) if whole is None else whole + cls._of_many(parts)
        assert whole is not None, "nobody has arrived"
        jobs = whole.orders.job
        return whole if (jobs[1:] > jobs[:-1]).all() else whole.pick(np.argsort(jobs))

    @classmethod
    def _of_singles(cls, jobs: Sequence[Single]) -> Landed:
        draws = [job.jobs.draws.item(job.row) for job in jobs if job.jobs.draws is not None]
        return cls(
            Orders.of([job.order for job in jobs]),
            Trips.of([job.trip for job in jobs]),
            [job.event.nbytes for job in jobs],
            draws or None,
            [job.jobs.bytes_down.item(job.row) for job in jobs],
            [job.jobs.bytes_up.item(job.row) for job in jobs],
            [job.event.upload for job in jobs if job.event.upload is not None],
        )

    @classmethod
    def _of_many(cls, parts: Sequence[Many]) -> Landed:
        """Rows of the same uploads."""
        uploads, jobs = parts[0].event.uploads, parts[0].jobs
        rows, sent = (np.concatenate(each) for each in ([p.event.rows for p in parts], [p.rows for p in parts]))
        order = np.argsort(rows)
        rows, sent = rows[order], sent[order]
        whole, places = len(rows) == len(uploads.nbytes), rows.tolist()
        return cls(
            uploads.orders if whole else uploads.orders.pick(rows),
            uploads.trips if whole else uploads.trips.pick(places),
            uploads.nbytes if whole else [uploads.nbytes[place] for place in places],
            None if jobs.draws is None else jobs.draws[sent].tolist(),
            jobs.bytes_down[sent].tolist(),
            jobs.bytes_up[sent].tolist(),
            [],
        )

    def __add__(self, others: Landed) -> Landed:
        return Landed(
            Orders.joined([self.orders, others.orders]),
            self.trips + others.trips,
            self.nbytes + others.nbytes,
            None if self.draws is None or others.draws is None else self.draws + others.draws,
            self.bytes_down + others.bytes_down,
            self.bytes_up + others.bytes_up,
            self.uploads + others.uploads,
        )

    def pick(self, rows: Numbers) -> Landed:
        """Some of them, in this order."""
        places = rows.tolist()

        def some(column: list[Any]) -> list[Any]:
            return [column[place] for place in places]

        return Landed(
            self.orders.pick(rows),
            self.trips.pick(places),
            some(self.nbytes),
            None if self.draws is None else some(self.draws),
            some(self.bytes_down),
            some(self.bytes_up),
            some(self.uploads) if len(self.uploads) == len(self) else [],
        )

    def with_shares(self, samples: NDArray[np.int64], weighting: Weighting) -> Landed:
        """The same, but only the mean of their weights is wanted; `samples` [N] are all clients'."""
        counts = torch.from_numpy(samples[self.orders.client][:, None])
        draws = None if self.draws is None else torch.tensor(self.draws)
        return replace(self, orders=self.orders.but(share=mean_shares(counts, draws, weighting).numpy()))

    def __len__(self) -> int:
        return len(self.nbytes)

    def sent(self, row: int) -> Sent:
        """What one of them was sent."""
        draws = None if self.draws is None else self.draws[row]
        return Sent(self.orders[row], draws, self.bytes_down[row], self.bytes_up[row])

    def one_by_one(self) -> list[tuple[Sent, Trip]]:
        """What each client was sent, and its trip."""
        return [(self.sent(row), self.trips[row]) for row in range(len(self))]

    def event(self, row: int) -> Arrived:
        """The upload of one of them."""
        order, trip = self.orders[row], self.trips[row]
        return Arrived(trip.arrives, order.client, order.job, order.version, self.nbytes[row], order, trip)


class AtWork(Stateful):
    """The jobs that are out, by client; a client has at most one."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[Dispatch, int]] = {}
        """Each client's dispatch and the row in it."""
        self.versions: dict[int, int] = {}
        """The version that each client started from."""
        self.held: dict[int, int] = {}
        """How many jobs started from each version."""

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def clients(self) -> list[int]:
        """The clients at work, in the order of their dispatch."""
        return [*self._jobs]

    @property
    def sent(self) -> dict[int, Sent]:
        """All jobs."""
        return {client: dispatch.sent(row) for client, (dispatch, row) in self._jobs.items()}

    def begin(self, jobs: Dispatch) -> None:
        """They are on their way."""
        clients, versions = jobs.orders.numbers("client"), jobs.orders.numbers("version")
        assert self._jobs.keys().isdisjoint(clients), "a client is at work already"
        self._jobs.update(zip(clients, zip(repeat(jobs), range(len(clients))), strict=False))
        self.versions.update(zip(clients, versions, strict=True))
        for version, count in Counter(versions).items():
            self.held[version] = self.held.get(version, 0) + count

    def get(self, client: int) -> tuple[Dispatch, int] | None:
        """The client's job: the dispatch, and the row in it."""
        return self._jobs.get(client)

    def find(self, client: int, job: int) -> Sent | None:
        """The client's job, if it is the one of that number."""
        jobs, row = self._jobs.get(client, _NONE)
        return None if jobs is None or jobs.orders.job[row] != job else jobs.sent(row)

    def charge(self, client: int, nbytes: int) -> None:
        """Charge a client's job with more bytes sent down."""
        dispatch, row = self._jobs[client]
        dispatch.bytes_down[row] += nbytes

    def end(self, *clients: int) -> None:
        """Their jobs are over."""
        if len(clients) == len(self._jobs):
            self._jobs.clear()
            self.versions.clear()
            self.held.clear()
            return
        for client in clients:
            del self._jobs[client]
            version = self.versions.pop(client)
            self.held[version] -= 1
            if not self.held[version]:
                del self.held[version]

    def expected(self, clients: list[int]) -> tuple[Dispatch | None, Numbers]:
        """(The dispatch whose jobs these clients are at work on, if that is one; the rows in it)."""
        first = self._jobs.get(clients[0], _NONE)[0]
        rows = [row for jobs, row in map(self._jobs.get, clients, repeat(_NONE)) if jobs is first]
        return first if len(rows) == len(clients) else None, np.array(rows)

    def snapshot(self) -> dict[str, Any]:
        """The jobs one by one, because a dispatch may also hold jobs that are over."""
        return {"sent": self.sent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""
        self.__init__()  # type: ignore[misc]
        if state["sent"]:
            self.begin(Dispatch.of([*state["sent"].values()]))


_NONE: tuple[Dispatch | None, int] = None, 0
