"""What is written down of arrivals, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.record.rows import Arrivals
from fedkeel.server.clients import Landed
from fedkeel.server.trips import Trips
from fedkeel.wire.orders import Order, Trained


def arrivals(
    landed: Landed,
    samples: NDArray[np.int64],
    upload: Trained,
    weights: Sequence[float | None],
    version: int,
    **more: list[Any],
) -> Arrivals:
    """Updates that were taken in by the model of this `version`; `more` are further columns."""
    orders, trips = landed.orders, landed.trips
    epochs, versions = orders.numbers("epochs"), orders.numbers("version")
    return Arrivals(
        client=orders.numbers("client"),
        round=orders.numbers("round"),
        start_version=versions,
        staleness=[version - each for each in versions],
        epochs=epochs,
        steps=upload.steps.tolist(),
        samples=samples[orders.client].tolist(),
        learning_rates=readable(upload.lr, epochs),
        weight=[*weights],
        train_loss=upload.loss.tolist(),
        bytes_up=[*map(add, landed.nbytes, landed.bytes_up)],
        bytes_down=landed.bytes_down,
        dispatched=trips.dispatched,
        began=trips.began,
        finished=trips.finished,
        arrived=trips.arrives,
        **more,
    )


def merging(order: Order, trips: Trips) -> dict[str, list[Any]]:
    """The columns of a job that may have got a fresh model."""
    return {
        "slot": [order.slot if trips.merged[0] is not None else None],
        "fresh_version": [None if order.fresh is None else order.fresh.version],
        "asked": trips.asked,
        "merged": trips.merged,
        "resumed": trips.resumed,
    }


def patch(weights: list[float | None], earlier: Sequence[float]) -> None:
    """Fill in weights of updates that had none when they arrived, newest first; those of earlier rounds are dropped."""
    waiting = [place for place, weight in enumerate(weights[:-1]) if weight is None]
    for place, weight in zip(reversed(waiting), reversed(earlier), strict=False):
        weights[place] = weight


def readable(lr: Tensor, epochs: Sequence[int]) -> list[list[float]]:
    """Rates as they were written: 0.05, not 0.05000000074505806."""
    rates = lr.cpu().numpy()
    if epochs.count(epochs[0]) == len(epochs) and rates.tobytes() == rates[0].tobytes() * len(rates):
        return [_written(rates[0, : epochs[0]])] * len(rates)  # the same for all
    known: dict[tuple[bytes, int], list[float]] = {}
    rows = []
    for row, count in zip(rates, epochs, strict=True):
        key = row.tobytes(), count
        if key not in known:
            known[key] = _written(row[:count])
        rows.append(known[key])
    return rows


def _written(rates: NDArray[Any]) -> list[float]:
    return [float(str(rate)) for rate in rates]
