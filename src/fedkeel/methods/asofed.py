"""ASO-Fed (Chen et al., IEEE BigData 2020): clients follow their gradient against their own past; slow ones step wider.

s is the gradient of the mini-batch's loss plus lam/2 ||w - w_start||^2, and a client steps along s - s_prev + h, where
h <- beta h + (1 - beta) s_prev. If h takes s_prev in before the step, the direction with a small beta is s itself. If
it does so after the step (`late`, as the paper's algorithm can be read), it is s_t - s_{t-1} + s_{t-2}: three times
the noise, and unstable from lr * curvature = 2/3 on instead of 2.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule, Course, Job, Message, Oracle
from fedkeel.methods.course import Trail
from fedkeel.methods.registry import method
from fedkeel.methods.server import Receipt, ServerRule, ServerState, Updates, View
from fedkeel.methods.types import Decay
from fedkeel.params import Layout


def widened(delay: Tensor) -> Tensor:
    """r = max(1, log(mean delay)), in seconds; 1 where the delay is not known yet and is 0."""
    return delay.clamp(min=1).log().clamp(min=1)


class Followed(ClientRule):
    """w <- w - lr r (s - s_prev + h); s_prev and h are a client's own and last from job to job."""

    lam: NonNegativeFloat = 1.0
    """The weight of the proximal term (lambda in the paper)."""
    h_decay: Decay = 0.001
    """The share of the past that is kept in the gradient memory h (beta in the paper)."""
    late: bool = False
    """Update the memory h with the previous gradient after the step instead of before it."""
    dynamic_rate: bool = True
    """Let slow clients take larger steps, by the factor max(1, log(mean delay))."""

    @property
    def needs_sgd(self) -> str:
        return "the size of its direction, a mean with earlier ones that is larger for slow clients, counts"

    @property
    def pull(self) -> float:
        return self.lam

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        return {"h": torch.zeros_like(w), "s": torch.zeros_like(w)}

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Continues with the past of the last job."""
        rate = torch.ones_like(job.lr[:, :1])
        if self.dynamic_rate and "delay" in job.received:
            rate = widened(job.received["delay"])
        trail = Trail(job.kept["s"], job.kept["h"], self.h_decay, rate, self.late)
        return replace(job, course=Course(pull=torch.full_like(rate, self.lam), anchor=job.start, trail=trail))

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        trail = job.course.trail
        assert trail is not None
        return {}, {"h": trail.past, "s": trail.last}


class Accumulated(ServerRule):
    """w <- w + server_lr n_k / n (w_k - w_start) at each arrival, n the samples of all clients.

    With many clients that is a very small step: `server_lr` makes it larger.
    """

    pace = "periodic"

    server_lr: PositiveFloat = 1.0
    """The step size of the server. With 1 it is ASO-Fed as published."""
    feature: bool = False
    """Apply the paper's feature step to the first layer. It is off because it shrinks that layer at every arrival."""
    dynamic_rate: bool = True
    """Let slow clients take larger steps, by the factor max(1, log(mean delay))."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        zeros = torch.zeros(len(samples), dtype=torch.float64)
        return ServerState(w, {"total": samples.sum().double(), "seconds": zeros, "arrivals": zeros})

    def send(self, state: ServerState, client: int) -> Message:
        """The client's mean delay; 0 before its first update."""
        if not self.dynamic_rate:
            return {}
        mean = state.memory["seconds"][client] / state.memory["arrivals"][client].clamp(min=1)
        return {"delay": mean.to(state.w)[None]}

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """Every update is a new version."""
        weight = self.server_lr * float(update.samples / state.memory["total"])
        w = torch.add(state.w, update.delta[0], alpha=weight)
        if self.feature:
            _learn_features(w, update.layout)
        seconds, arrivals = state.memory["seconds"].clone(), state.memory["arrivals"].clone()
        seconds[view.client] += view.seconds
        arrivals[view.client] += 1
        return replace(state, w=w, memory={**state.memory, "seconds": seconds, "arrivals": arrivals}), Receipt(weight)


def _learn_features(w: Tensor, layout: Layout) -> None:
    """w_ij <- w_ij exp|w_ij| / sum_j exp|w_ij| in the first layer, in place; j are the inputs of a unit or filter i."""
    first = next((part for part in layout.parameters if len(part.shape) > 1), None)
    if first is not None:
        units = w[first.start : first.stop].view(first.shape[0], -1)
        units.mul_(units.abs().softmax(1))


asofed = method(
    "asofed",
    client=Followed,
    server=Accumulated,
    about="clients weigh gradients against their own past; slow ones step wider",
    cite="Chen et al., IEEE BigData 2020",
)
