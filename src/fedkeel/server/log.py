"""What is written about a round: one row per arrival, per job that did not arrive, and per upload refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fedkeel.errors import DivergenceError
from fedkeel.record.rows import Arrivals, Refused, Unfinished
from fedkeel.server.clients import Sent
from fedkeel.server.events import Arrived, RoundOver
from fedkeel.server.gate import Refusal
from fedkeel.server.stateful import Stateful
from fedkeel.server.trips import Trip


class Log(Stateful):
    """The rows of the current round; between rounds, what came since the last one."""

    saved = ("refused", "unfinished", "round")

    def __init__(self, round: int = 1) -> None:
        self.round = round
        self.told = Arrivals()
        self.seen: list[int] = []
        """Samples that each arrival's training went through."""
        self.refused: list[Refused] = []
        self.unfinished: list[Unfinished] = []
        self.models: list[tuple[Tensor, Tensor]] = []
        """(Weights, buffers) as they came back, where they are to be tested."""

    def refuse(self, upload: Arrived, refusal: Refusal, sent: Sent | None, now: float) -> None:
        """The gate refused an upload, which ended the job `sent`, if there is one."""
        self.refused.append(
            Refused(
                round=self.round,
                client=upload.client,
                job=upload.job,
                start_version=upload.version,
                dispatched=None if upload.trip is None else upload.trip.dispatched,
                arrived=now,
                reason=refusal.reason,
                detail=refusal.detail,
                bytes_up=upload.nbytes + (0 if sent is None else sent.bytes_up),
                bytes_down=0 if sent is None else sent.bytes_down,
            )
        )

    def write_off(self, sent: Sent, why: str, trip: Trip, now: float) -> None:
        """A job will not arrive."""
        order = sent.order
        self.unfinished.append(
            Unfinished(
                client=order.client,
                round=order.round,
                start_version=order.version,
                dispatched=trip.dispatched,
                began=trip.began,
                ended=now,
                why=why,
                bytes_down=sent.bytes_down,
                bytes_up=sent.bytes_up,
            )
        )

    def end_round(self, round: int, now: float, report: Mapping[str, Any], evaluate: bool) -> RoundOver:
        """The whole round's rows; the log starts again with the next round."""
        told, columns = self.told, self.told.columns
        seen = np.array(self.seen, dtype=np.float64)
        train_loss = float((np.array(columns["train_loss"]) * seen).sum() / seen.sum()) if told else None
        over = RoundOver(round, now, train_loss, told, self.unfinished, self.refused, report, self.models, evaluate)
        self.__init__(round + 1)  # type: ignore[misc]
        return over


def divergence(round: int, what: str, told: Arrivals, lr: float) -> DivergenceError:
    """Names the round, the learning rate, and the client with the highest loss."""
    worst = told[int(np.argmax(told.columns["train_loss"]))] if told else None
    who = (
        f"the learning rate was {lr:g}"
        if worst is None
        else f"the highest training loss was {worst.train_loss:g}, of client {worst.client} at "
        f"learning rate {worst.learning_rates[0]:g}"
    )
    advice = "try a smaller local.lr, or local.clip_norm"
    return DivergenceError(f"training diverged in round {round}: {what}; {who}; {advice}")
