"""FedBuff (Nguyen et al., AISTATS 2022): updates are gathered in a buffer, and a full buffer is one step."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.registry import method
from fedkeel.methods.server import Receipt, ServerRule, ServerState, Updates, View
from fedkeel.methods.staleness import staleness_factor
from fedkeel.methods.types import Rest
from fedkeel.params import Layout


class Buffered(ServerRule):
    """Delta += s(t - tau) (w_i - w_start) at each arrival; after K of them w <- w + server_lr Delta / K, once.

    s(t - tau) = (1 + t - tau)^-exponent. The difference is from the model that the job started from, not from the
    current one.
    """

    pace = "concurrency"

    buffer_size: PositiveInt = 10
    """The number of updates that the server collects before it changes the model (K in the paper)."""
    server_lr: PositiveFloat = 1.0
    """The step size of the server along the mean update."""
    exponent: NonNegativeFloat = 0.5
    """How fast the weight of an update falls with its staleness s: the weight is (1 + s) to the power of minus this."""
    rest: Rest = "drop"
    """What happens to a buffer that is not full when the run ends: it is dropped (`drop`) or applied (`flush`)."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        return ServerState(w, _empty(w))

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """The model is a new version when the buffer is full; the weight is the update's share in that step."""
        factor = staleness_factor(view.staleness, "polynomial", self.exponent, 0)
        delta = torch.add(state.memory["delta"], update.delta[0], alpha=factor)
        count = state.memory["count"] + 1
        full = int(count) == self.buffer_size
        after = replace(state, memory={"delta": delta, "count": count})
        return self._step(after) if full else after, Receipt(self.server_lr * factor / self.buffer_size, full)

    def close(self, state: ServerState) -> ServerState:
        flushed = self.rest == "flush" and int(state.memory["count"]) > 0
        return self._step(state) if flushed else state

    def _step(self, state: ServerState) -> ServerState:
        w = state.w + self.server_lr * state.memory["delta"] / state.memory["count"]
        return replace(state, w=w, memory=_empty(w))


def _empty(w: Tensor) -> dict[str, Tensor]:
    return {"delta": torch.zeros_like(w), "count": torch.zeros((), dtype=torch.int64)}


fedbuff = method(
    "fedbuff",
    client=ClientRule,
    server=Buffered,
    about="gathers updates in a buffer; a full buffer is one step",
    cite="Nguyen et al., AISTATS 2022",
)
