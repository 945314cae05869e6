"""What is recorded of arrivals, jobs and uploads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.local.orders import Trained
from fedkeel.methods.server import Receipt
from fedkeel.record.rows import Arrivals
from fedkeel.runtime.flights import Flight


def arrivals(
    flights: Sequence[Flight],
    sizes: NDArray[np.int64],
    trained: Trained,
    weights: Sequence[float | None],
    bytes_up: Sequence[int],
    version: int,
    **more: list[Any],
) -> Arrivals:
    """Uploads that were taken in; `version` is that of the model which they meet, `more` are further columns."""
    orders = [flight.order for flight in flights]
    epochs = [order.epochs for order in orders]
    return Arrivals(
        client=[order.client for order in orders],
        round=[order.round for order in orders],
        start_version=[order.version for order in orders],
        staleness=[version - order.version for order in orders],
        epochs=epochs,
        steps=trained.steps.tolist(),
        samples=sizes[[order.client for order in orders]].tolist(),
        learning_rates=readable(trained.lr, epochs),
        weight=[*weights],
        train_loss=trained.loss.tolist(),
        bytes_up=[*bytes_up],
        bytes_down=[flight.bytes_down for flight in flights],
        dispatched=[flight.dispatched for flight in flights],
        began=[flight.began for flight in flights],
        finished=[flight.finished for flight in flights],
        arrived=[flight.arrives for flight in flights],
        **more,
    )


def received(
    flight: Flight,
    sizes: NDArray[np.int64],
    trained: Trained,
    receipt: Receipt,
    bytes_up: Sequence[int],
    version: int,
    notes: dict[str, float],
) -> Arrivals:
    """An upload that was received at once, with what is known of a fresh model that it got and merged."""
    merged = flight.merged is not None
    return arrivals(
        [flight],
        sizes,
        trained,
        [receipt.weight],
        bytes_up,
        version,
        slot=[flight.order.slot if merged else None],
        fresh_version=[flight.order.fresh_version if merged else None],
        asked=[flight.asked],
        merged=[flight.merged],
        accepted=[receipt.accepted],
        notes=[notes or None],
    )


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
