"""Which clients take part in a round, or in another dispatch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.config import usercode
from fedkeel.config.userdraw import Draw, drawn
from fedkeel.errors import InputError, shown

KINDS = ("uniform", "scheme1")
FIELD = "sampling"
GIVEN = ("sizes", "count", "free", "rng")


def check(kind: str) -> str:
    """The kind itself, if it is known or is a user's function that can be called."""
    if usercode.is_own(kind):
        usercode.check_call(usercode.find(kind, FIELD), kind, FIELD, GIVEN)
    elif kind not in KINDS:
        raise InputError(f"{FIELD} must be one of {', '.join(KINDS)} or module:function; got {shown(kind)}")
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

    `sizes` [N] are all clients' samples; `free` [N] says which clients can be given a job, if not all can. `count`
    clients are drawn, or all that are free. A client that is drawn more than once works once. `wave` is the number of
    the dispatch. `counted` says whether a user's function may say how often each was drawn.
    """
    rng = streams.generator(seed, "sampling", wave)
    able = sizes > 0 if free is None else (sizes > 0) & free
    eligible = np.flatnonzero(able)
    if usercode.is_own(kind):
        return drawn(kind, FIELD, sizes, count, able, rng, counted) if count and len(eligible) else (eligible[:0], None)
    if kind == "uniform":
        return np.sort(rng.choice(eligible, min(count, len(eligible)), replace=False)), None
    if not len(eligible):
        return eligible, np.zeros(0, dtype=np.int64)
    shares = sizes[eligible] / sizes[eligible].sum()
    return np.unique(rng.choice(eligible, count, p=shares), return_counts=True)
