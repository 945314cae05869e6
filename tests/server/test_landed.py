"""What has arrived, put together by job: each job keeps what belongs to it, however it came."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.server.clients import AtWork, Dispatch, Landed, Many, Single
from fedkeel.server.events import Arrived, ArrivedTogether, Uploads
from fedkeel.server.trips import Times, Trips
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Order

W = torch.zeros(2)


def order(client: int) -> Order:
    return Order(20 + client, client, 3, 1 + client % 2, W, W[:0], W[:1], {}, {}, wave=3, version=2)


def trip(client: int) -> Times:
    return Times(0.0, 0.5, 1.0 + client, 2.0 + client, None, None)


def upload(client: int) -> Arrived:
    return Arrived(2.0 + client, client, 20 + client, 2, 100 + client, order(client), trip(client))


@given(st.data(), st.booleans())
def test_every_job_keeps_what_is_its_own(data: st.DataObject, counted: bool) -> None:
    count = data.draw(st.integers(1, 9))
    rows = np.arange(count)
    draws = rows % 3 + 1 if counted else None
    sent = Dispatch(Orders.of([order(client) for client in range(count)]), draws, 1000 + rows, 5 * rows)
    # Some of them are told of together, as rows of uploads that are not all there are.
    grouped = sorted(data.draw(st.sets(st.sampled_from(range(count)))))
    uploads = Uploads(
        Orders.of([order(client) for client in grouped]), Trips.of([trip(client) for client in grouped]),
        [100 + client for client in grouped],
    )  # fmt: skip
    came = data.draw(st.permutations(range(count)))[: data.draw(st.integers(1, count))]
    arrived: list[Single | Many] = []
    batch: list[int] = []
    for client in [*came, None]:
        if client in grouped and client is not None and data.draw(st.booleans()):
            batch.append(client)
            continue
        if batch:
            places = np.array([grouped.index(each) for each in batch])
            arrived.append(Many(ArrivedTogether(0.0, uploads, places), sent, np.array(batch)))
            batch = []
        if client is not None:
            arrived.append(Single(upload(client), sent, client, order(client), trip(client)))
    landed = Landed.of(arrived)
    expected = sorted(came)
    assert landed.orders.job.tolist() == [20 + client for client in expected]
    assert landed.orders.epochs.tolist() == [1 + client % 2 for client in expected]
    assert landed.nbytes == [100 + client for client in expected]
    assert (landed.bytes_down, landed.bytes_up) == ([1000 + c for c in expected], [5 * c for c in expected])
    assert landed.draws == ([client % 3 + 1 for client in expected] if counted else None)
    assert [landed.trips[row] for row in range(len(landed))] == [trip(client) for client in expected]
    for row, client in enumerate(expected):
        for name in ("time", "client", "job", "version", "nbytes", "trip"):
            assert getattr(landed.event(row), name) == getattr(upload(client), name)
    some = landed.pick(np.array([len(landed) - 1, 0]))
    assert some.nbytes == [100 + expected[-1], 100 + expected[0]]
    assert [each.bytes_down for each, _ in some.one_by_one()] == [1000 + expected[-1], 1000 + expected[0]]


@given(st.data())
def test_who_is_at_work(data: st.DataObject) -> None:
    """Against a plain dictionary of jobs."""
    at_work, known, restored = AtWork(), dict[int, int](), False
    for step in range(6):
        free = [client for client in range(6) if client not in known]
        clients = sorted(data.draw(st.sets(st.sampled_from(free)))) if free else []
        if clients:
            orders = [Order(10 * step + c, c, 1, 1, W, W[:0], W[:1], {}, {}, version=step) for c in clients]
            at_work.begin(
                Dispatch(Orders.of(orders), None, np.full(len(clients), 7), np.zeros(len(clients), dtype=int))
            )
            known |= dict.fromkeys(clients, step)
        over = sorted(data.draw(st.sets(st.sampled_from([*known])))) if known else []
        dispatch, rows = at_work.expected(over) if over else (None, np.zeros(0, dtype=int))
        assert restored or (dispatch is not None) == (len({known[client] for client in over}) == 1)
        if dispatch is not None:
            assert dispatch.orders.client[rows].tolist() == over
        at_work.end(*over)
        known = {client: version for client, version in known.items() if client not in over}
        if data.draw(st.booleans()):
            again, restored = AtWork(), True  # all are one dispatch now
            again.restore(at_work.snapshot())
            at_work = again
        assert {c: (s.order.job, s.bytes_down) for c, s in at_work.sent.items()} == {
            client: (10 * version + client, 7) for client, version in known.items()
        }
        assert at_work.versions == known
        assert at_work.held == {version: [*known.values()].count(version) for version in {*known.values()}}
        assert (len(at_work), sorted(at_work.clients)) == (len(known), sorted(known))
        if known:
            first = min(known)
            assert at_work.find(first, 10 * known[first] + first) is not None
            assert at_work.find(first, 999) is None
