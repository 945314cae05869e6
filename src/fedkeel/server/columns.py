"""What is written down of arrivals, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.server.clients import Landed
from fedkeel.wire.orders import Trained

Columns = dict[str, list[Any]]
"""By the names of `Arrival`'s fields."""


def columns(
    landed: Sequence[Landed],
    samples: NDArray[np.int64],
    upload: Trained,
    weights: Sequence[float | None],
    version: int,
) -> Columns:
    """What every arrival has; `version` is that of the model which they meet."""
    orders, trips = [each.order for each in landed], [each.trip for each in landed]
    epochs = [order.epochs for order in orders]
    return {
        "client": [order.client for order in orders],
        "round": [order.round for order in orders],
        "start_version": [order.version for order in orders],
        "staleness": [version - order.version for order in orders],
        "epochs": epochs,
        "steps": upload.steps.tolist(),
        "samples": samples[[order.client for order in orders]].tolist(),
        "learning_rates": readable(upload.lr, epochs),
        "weight": [*weights],
        "train_loss": upload.loss.tolist(),
        "bytes_up": [each.sent.upload_bytes + each.sent.bytes_up for each in landed],
        "bytes_down": [each.sent.bytes_down for each in landed],
        "dispatched": [trip.dispatched for trip in trips],
        "began": [trip.began for trip in trips],
        "finished": [trip.finished for trip in trips],
        "arrived": [trip.arrives for trip in trips],
    }


def merging(landed: Sequence[Landed]) -> Columns:
    """What those have that got a fresh model."""
    got = [(each.order, each.trip.merged is not None) for each in landed]
    return {
        "slot": [order.slot if merged else None for order, merged in got],
        "fresh_version": [None if order.fresh is None else order.fresh.version for order, _ in got],
        "asked": [each.trip.asked for each in landed],
        "merged": [each.trip.merged for each in landed],
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
