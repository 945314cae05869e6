"""Who takes part in a round, or in another dispatch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.config import usercode
from fedkeel.errors import InputError, shown

Draw = tuple[NDArray[np.int64], NDArray[np.int64] | None]

KINDS = ("uniform", "scheme1")
FIELD = "sampling"
GIVEN = ("sizes", "count", "free", "rng")


def check(kind: str) -> str:
    """The kind, if there is one of this name or the user's function can be called."""
    if usercode.is_own(kind):
        usercode.check_call(usercode.find(kind, FIELD), kind, FIELD, GIVEN)
    elif kind not in KINDS:
        raise InputError(f"{FIELD}: {shown(kind)} is not accepted; accepted: {', '.join(KINDS)} or module:function")
    return kind


def draw(
    seed: int,
    wave: int,
    kind: str,
    sizes: NDArray[np.int64],
    count: int,
    free: NDArray[np.bool_] | None = None,
    counted: bool = True,
) -> Draw:
    """(The clients, ascending, among those that have data; how often each was drawn, where that may be more than once).

    `sizes` [N] are all clients' samples; `free` [N] says who can be given a job, if not everybody can. `count` clients
    are drawn, or all that are free. Who is drawn again works once. `wave` is the number of the dispatch. `counted` says
    whether a user's function may say how often each was drawn.
    """
    rng = streams.generator(seed, "sampling", wave)
    able = sizes > 0 if free is None else (sizes > 0) & free
    eligible = np.flatnonzero(able)
    if usercode.is_own(kind):
        return _own(kind, sizes, count, able, rng, counted) if count and len(eligible) else (eligible[:0], None)
    if kind == "uniform":
        return np.sort(rng.choice(eligible, min(count, len(eligible)), replace=False)), None
    if not len(eligible):
        return eligible, np.zeros(0, dtype=np.int64)
    shares = sizes[eligible] / sizes[eligible].sum()
    return np.unique(rng.choice(eligible, count, p=shares), return_counts=True)


def _own(
    kind: str,
    sizes: NDArray[np.int64],
    count: int,
    able: NDArray[np.bool_],
    rng: np.random.Generator,
    counted: bool,
) -> Draw:
    """As the user's `draw(sizes, count, free, rng)` has it, which returns clients or (clients, draws)."""
    function, what = usercode.find(kind, FIELD), f"{FIELD}: {kind}"
    drawn = usercode.guarded(function, kind, FIELD, sizes.copy(), count, able.copy(), rng)
    pair = isinstance(drawn, tuple) and len(drawn) == 2 and all(np.ndim(part) == 1 for part in drawn)
    clients, draws = drawn if pair else (drawn, None)
    clients = _whole(clients, what, "client numbers")
    if not len(clients):
        raise InputError(f"{what} drew nobody; accepted: at least one of the clients that are free")
    if len(clients) > count:
        raise InputError(f"{what} drew {len(clients)} clients; accepted: at most {count}")
    if len(clients) and not (clients.min() >= 0 and clients.max() < len(sizes)):
        wrong = clients.min() if clients.min() < 0 else clients.max()
        raise InputError(f"{what} drew client {wrong}; accepted: 0 to {len(sizes) - 1}")
    order = np.argsort(clients, kind="stable")
    clients = clients[order]
    for client in clients[1:][np.diff(clients) == 0]:
        raise InputError(f"{what} drew client {client} twice; accepted: each once, and how often as (clients, draws)")
    for client in clients[~able[clients]]:
        why = "has no data" if not sizes[client] else "is at work or off"
        raise InputError(f"{what} drew client {client}, who {why}; accepted: clients that are free")
    if draws is None:
        return clients, None
    draws = _whole(draws, what, "draws per client")
    if len(draws) != len(clients) or (draws < 1).any():
        raise InputError(f"{what} returned the draws {shown(draws.tolist())}; accepted: 1 or more for each client")
    if not counted:
        raise InputError(
            f"{what} returned draws, which count only in rounds with a barrier and without schedule.over_select; "
            "accepted: the clients alone"
        )
    return clients, draws[order]


def _whole(values: Any, what: str, accepted: str) -> NDArray[np.int64]:
    """[m], whole numbers that a function returned."""
    try:
        array = np.asarray(values)
    except Exception:
        array = np.asarray(None)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InputError(f"{what} returned {shown(values)}; accepted: {accepted}")
    return array.astype(np.int64)
