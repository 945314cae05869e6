"""What is written down of arrivals, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.record.rows import Arrivals
from fedkeel.server.clients import Landed
from fedkeel.wire.orders import Trained


def arrivals(
    landed: Sequence[Landed],
    samples: NDArray[np.int64],
    upload: Trained,
    weights: Sequence[float | None],
    version: int,
    **more: list[Any],
) -> Arrivals:
    """Updates that were taken in; `version` is that of the model which they met, `more` are further columns."""
    orders, trips = [each.order for each in landed], [each.trip for each in landed]
    epochs = [order.epochs for order in orders]
    return Arrivals(
        client=[order.client for order in orders],
        round=[order.round for order in orders],
        start_version=[order.version for order in orders],
        staleness=[version - order.version for order in orders],
        epochs=epochs,
        steps=upload.steps.tolist(),
        samples=samples[[order.client for order in orders]].tolist(),
        learning_rates=readable(upload.lr, epochs),
        weight=[*weights],
        train_loss=upload.loss.tolist(),
        bytes_up=[each.event.nbytes + each.sent.bytes_up for each in landed],
        bytes_down=[each.sent.bytes_down for each in landed],
        dispatched=[trip.dispatched for trip in trips],
        began=[trip.began for trip in trips],
        finished=[trip.finished for trip in trips],
        arrived=[trip.arrives for trip in trips],
        **more,
    )


def merging(landed: Landed) -> dict[str, list[Any]]:
    """What one has that may have got a fresh model."""
    order, trip = landed.order, landed.trip
    return {
        "slot": [order.slot if trip.merged is not None else None],
        "fresh_version": [None if order.fresh is None else order.fresh.version],
        "asked": [trip.asked],
        "merged": [trip.merged],
    }


def patch(weights: list[float | None], earlier: Sequence[float]) -> None:
    """Weights of updates that had none when they arrived, the last but one first; those of earlier rounds are lost."""
    waiting = [place for place, weight in enumerate(weights[:-1]) if weight is None]
    for place, weight in zip(reversed(waiting), reversed(earlier), strict=False):
        weights[place] = weight


def readable(lr: Tensor, epochs: Sequence[int]) -> list[list[float]]:
    """Rates as they were written: 0.05, not 0.05000000074505806."""
    known: dict[tuple[bytes, int], list[float]] = {}
    rows = []
    for row, count in zip(lr.cpu().numpy(), epochs, strict=True):
        key = row.tobytes(), count
        if key not in known:
            known[key] = [float(str(rate)) for rate in row[:count]]
        rows.append(known[key])
    return rows
