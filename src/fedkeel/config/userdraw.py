"""Clients that a function of the user's draws, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.config import usercode
from fedkeel.errors import InputError, shown

Draw = tuple[NDArray[np.int64], NDArray[np.int64] | None]
"""(The clients, how often each was drawn, where that may be more than once)."""


def drawn(
    kind: str,
    field: str,
    sizes: NDArray[np.int64],
    count: int,
    able: NDArray[np.bool_],
    rng: np.random.Generator,
    counted: bool,
) -> Draw:
    """As the user's `draw(sizes, count, free, rng)` has it, which returns clients or (clients, draws)."""
    function, what = usercode.find(kind, field), f"{field}: {kind}"
    found = usercode.guarded(function, kind, field, sizes.copy(), count, able.copy(), rng)
    pair = isinstance(found, tuple) and len(found) == 2 and all(np.ndim(part) == 1 for part in found)
    clients, draws = found if pair else (found, None)
    clients = _whole(clients, what, "client numbers")
    if not len(clients):
        raise InputError(f"{what} drew no client; return at least one of the free clients")
    if len(clients) > count:
        raise InputError(f"{what} must draw at most {count} clients; got {len(clients)}")
    if not (clients.min() >= 0 and clients.max() < len(sizes)):
        wrong = clients.min() if clients.min() < 0 else clients.max()
        raise InputError(f"{what} must draw clients from 0 to {len(sizes) - 1}; got {wrong}")
    order = np.argsort(clients, kind="stable")
    clients = clients[order]
    for client in clients[1:][np.diff(clients) == 0]:
        raise InputError(
            f"{what} drew client {client} twice; return each client once, and how often as (clients, draws)"
        )
    for client in clients[~able[clients]]:
        why = "has no data" if not sizes[client] else "is at work or off"
        raise InputError(f"{what} drew client {client}, which {why}; draw free clients only")
    if draws is None:
        return clients, None
    draws = _whole(draws, what, "draws per client")
    if len(draws) != len(clients) or (draws < 1).any():
        raise InputError(f"{what} must return 1 or more draws for each client; got {shown(draws.tolist())}")
    if not counted:
        raise InputError(
            f"{what} returned draws, which count only in rounds with a barrier and without schedule.over_select; "
            "return the clients alone"
        )
    return clients, draws[order]


def _whole(values: Any, what: str, wanted: str) -> NDArray[np.int64]:
    """[m], whole numbers that a function returned."""
    try:
        array = np.asarray(values)
    except Exception:
        array = np.asarray(None)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InputError(f"{what} must return {wanted}; got {shown(values)}")
    return array.astype(np.int64)
