"""PORT (Su and Li, IWQoS 2022): buffered updates weighted by staleness and direction; stale jobs are asked to hurry."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedkeel.methods.client import ClientRule, Message
from fedkeel.methods.registry import method
from fedkeel.methods.server import Receipt, ServerRule, ServerState, Updates, View
from fedkeel.methods.types import Rest
from fedkeel.params import Layout


def cosine(x: Tensor, y: Tensor) -> float:
    """The cosine of the angle between two vectors [D], in float64; 0 where one of them is zero."""
    x, y = x.double(), y.double()
    norms = float(x.norm() * y.norm())
    return min(1.0, max(-1.0, float(x @ y) / norms)) if norms > 0 else 0.0


class Weighed(ServerRule):
    """w <- w + sum a_i D_i after so many updates, D_i from the model that each job started from.

    a_i is n_i [similarity (cos_i + 1) / 2 + staleness_weight B / (s_i + B)], divided by its sum over the buffer. Where
    s_i > 1, cos_i is the cosine of D_i and the move of the model over the last two versions; else it is 1. The model
    does not move between two aggregations, so each factor is known on arrival and the buffer is one weighted sum.
    """

    pace = "concurrency"

    minimum: PositiveInt = 10
    """The number of updates that the server collects before it changes the model. The authors wait for half of the
    devices at work."""
    similarity: NonNegativeFloat = 1.0
    """The weight of the direction of an update, compared with the last moves of the model."""
    staleness_weight: PositiveFloat = 3.0
    """The weight of the freshness of an update; staler updates count less."""
    staleness_bound: PositiveInt = 10
    """The staleness at which the weight of freshness has halved (B in the paper)."""
    notify: bool = True
    """Ask a device whose job is more than `staleness_bound` versions behind to send what it has."""
    rest: Rest = "drop"
    """What happens to a buffer that is not full when the run ends: it is dropped (`drop`) or applied (`flush`)."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """An empty buffer; there are no earlier versions yet."""
        return ServerState(w, {**_empty(w), "one back": w, "two back": w})

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """When the buffer is full, the weights of all its updates are known."""
        delta = update.delta[0]
        raw = float(update.samples) * self.raw(delta, state, view.staleness)
        buffered: Message = {
            "sum": state.memory["sum"] + raw * delta,
            "raws": torch.cat([state.memory["raws"], torch.tensor([raw], dtype=torch.float64)]),
        }
        state = replace(state, memory={**state.memory, **buffered})
        if len(buffered["raws"]) < self.minimum:
            return state, Receipt(None, published=False)
        *earlier, weight = (buffered["raws"] / buffered["raws"].sum()).tolist()
        return self._step(state), Receipt(weight, earlier=earlier, interrupt=self.overdue(view))

    def raw(self, delta: Tensor, state: ServerState, staleness: int) -> float:
        """The weight of an update before it is multiplied by its samples and normalised over the buffer."""
        bound, cos = self.staleness_bound, 1.0
        if staleness > 1:
            cos = cosine(delta, state.w - state.memory["two back"])
        return self.similarity * (cos + 1) / 2 + self.staleness_weight * bound / (staleness + bound)

    def overdue(self, view: View) -> list[int]:
        """Clients whose jobs this aggregation leaves more than B versions behind.

        Versions grow one by one, so each job passes the bound once and is told once.
        """
        behind = self.staleness_bound + 1
        return sorted(
            client for client, start in view.busy.items() if self.notify and view.version + 1 - start == behind
        )

    def close(self, state: ServerState) -> ServerState:
        flushed = self.rest == "flush" and len(state.memory["raws"]) > 0
        return self._step(state) if flushed else state

    def _step(self, state: ServerState) -> ServerState:
        w = state.w + state.memory["sum"] / state.memory["raws"].sum()
        return replace(state, w=w, memory={**_empty(w), "one back": state.w, "two back": state.memory["one back"]})


def _empty(w: Tensor) -> dict[str, Tensor]:
    return {"sum": torch.zeros_like(w), "raws": torch.zeros(0, dtype=torch.float64)}


port = method(
    "port",
    client=ClientRule,
    server=Weighed,
    about="buffered updates, weighted by staleness and direction; stale jobs are asked to hurry",
    cite="Su and Li, IWQoS 2022",
)
