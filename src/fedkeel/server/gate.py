"""The gate in front of every aggregation: which uploads are let in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkeel.params import Layout, Part
from fedkeel.server.settings import GateSettings
from fedkeel.server.stateful import Stateful
from fedkeel.wire.many import Numbers, Orders
from fedkeel.wire.orders import Order, Trained, divergence


@dataclass(frozen=True)
class Refusal:
    """Why an upload is refused: one of a few reasons, and what was wrong with this upload."""

    reason: str
    detail: str


class Claim(NamedTuple):
    """What an upload says about itself."""

    job: int
    version: int


Claims = tuple[Numbers, Numbers]
"""What many uploads say: (their jobs [m], the versions [m] that those jobs began with)."""


class Gate(Stateful):
    """Looks at what an upload claims to be, and at what is in it."""

    saved = ("_come",)

    def __init__(
        self, settings: GateSettings, layout: Layout, uploads: Part, clients: int, altered: bool = False
    ) -> None:
        """`altered` says whether the wire changes uploads on their way."""
        self._settings = settings
        self._altered = altered
        self._layout = layout
        self._part = None if uploads == "all" else layout.mask(uploads)
        self._come = np.zeros(clients, dtype=np.int64)
        """[N], the last job of each client whose upload has arrived; 0: none."""

    @property
    def max_norm(self) -> float | None:
        """The largest norm of an update, if that is bounded."""
        return self._settings.max_norm

    def claim(self, client: int, job: int, version: int, expected: Claim | Order | None, newest: int) -> Refusal | None:
        """Whether an upload is what the server waits for.

        It claims to be `client`'s job of that number, begun with that version of the model; the server waits for the
        job `expected`, and its own model has the version `newest`.
        """
        if version > newest:
            return Refusal("from the future", f"it claims version {version}, the newest is {newest}")
        if expected is not None and job == expected.job:
            if version != expected.version:
                return Refusal("wrong version", f"it claims version {version}, the job began with {expected.version}")
            self._come[client] = job
            return None
        if job == self._come[client]:
            return Refusal("duplicate", f"job {job} has arrived before")
        waits = "none is expected" if expected is None else f"job {expected.job} is expected"
        return Refusal("old job", f"job {job} is over, {waits}")

    def claims(self, clients: Numbers, claimed: Claims, expected: Claims, newest: int) -> bool:
        """The same for many uploads: whether the server waits for all of them. If not, nothing is noted."""
        (jobs, versions), (right_jobs, right_versions) = claimed, expected
        right = (jobs == right_jobs) & (versions == right_versions) & (versions <= newest)
        if not right.all():
            return False
        self._come[clients] = jobs
        return True

    def judge(self, orders: Sequence[Order], trained: Trained, altered: bool = False) -> list[Refusal | None]:
        """For each upload, why its content is refused, if there is a reason.

        A client whose own training diverged stops the run, unless the settings say otherwise. Trained weights are
        known to be finite, so they are checked again only if they were `altered` on the way.
        """
        orders = Orders.of(orders)
        count, size, start = len(orders), 0 if orders.stay else self._layout.size, orders.start[0]
        if trained.w.shape != (count, size):
            return [Refusal("wrong shape", f"weights must be [{size}]; got {[*trained.w.shape[1:]]}")] * count
        if trained.w.dtype != start.dtype:
            return [Refusal("wrong dtype", f"weights must be {start.dtype}; got {trained.w.dtype}")] * count
        refusals: list[Refusal | None] = [None] * count
        sound = trained.sound(1e30 if self._settings.max_loss is None else self._settings.max_loss)
        for row in () if all(sound) else range(count):
            if not sound[row]:
                refusals[row] = self._diverged(orders[row], trained, row)
        sent = [*trained.messages.values(), trained.buffers, *([trained.w] if altered or self._altered else [])]
        for each in sent:
            if each.is_floating_point() and each.numel() and not isfinite(each.sum()):  # finite only if all numbers are
                _refuse(refusals, each.reshape(count, -1).isfinite().all(1))
        if trained.intact is not None:
            _refuse(refusals, trained.intact)
        self._bound(orders, trained, refusals)
        return refusals

    def _diverged(self, order: Order, trained: Trained, row: int) -> Refusal:
        if self._settings.diverged == "stop":
            raise divergence(order, trained, row)
        return Refusal("diverged", f"loss {float(trained.loss[row]):g} at learning rate {float(trained.lr[row, 0]):g}")

    def _bound(self, orders: Orders, trained: Trained, refusals: list[Refusal | None]) -> None:
        lowest, highest = self._settings.min_norm, self._settings.max_norm
        if lowest is None and highest is None:
            return
        slack = 2.0**-7 if self._altered else 0.0  # updates that were clipped may be rounded after that, to eight bits
        for row, start in enumerate(orders.start):
            norm = float(self.norm(trained.w[row] - start))
            if refusals[row] is None and highest is not None and norm > highest * (1 + slack):
                refusals[row] = Refusal("norm", f"it must be at most {highest:g}; got {norm:g}")
            if refusals[row] is None and lowest is not None and norm < lowest:
                refusals[row] = Refusal("norm", f"it must be at least {lowest:g}; got {norm:g}")

    def norm(self, update: Tensor) -> Tensor:
        """The norm of the part of an update [D] that travels."""
        travels = update if self._part is None else update[self._part.to(update.device)]
        norm: Tensor = torch.linalg.vector_norm(travels.double())
        return norm


def _refuse(refusals: list[Refusal | None], finite: Tensor) -> None:
    """Rows that are not finite [m], unless there is another reason already."""
    for row in torch.nonzero(~finite)[:, 0].tolist():
        refusals[row] = refusals[row] or Refusal("not finite", "it holds NaN or infinite numbers")
