"""FedGH (Yi et al., ACM MM 2023): private bodies, and a global header that the server trains on class means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule, Job, Message, Oracle, Sends
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerRule, ServerState, Updates
from fedkeel.params import Layout

_LABEL = 8  # bytes


class PrivateBody(ClientRule):
    """Trains its own body behind the global header; sends the mean features of its classes, and no weights."""

    pair = "fedgh"
    downloads = "head"
    uploads = "none"
    features = "logits"
    global_model = False
    needs_classes = "its header is trained on the mean features of each class"

    def objection(self, layout: Layout, momentum: float) -> str | None:
        """The server knows how to train a linear header."""
        if layout.linear_head is None:
            return "its server trains a linear header; use a model whose last layer is one nn.Linear"
        return None

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        return {"w": w, "buffers": buffers}

    def own(self, w: Tensor, buffers: Tensor, kept: Message) -> tuple[Tensor, Tensor]:
        """As the client trained it last, its copy of the header included."""
        return kept["w"], kept["buffers"]

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """From its own body under the global header."""
        start = torch.where(job.layout.head.to(job.start.device), job.start, job.kept["w"])
        return replace(job, start=start, buffers=job.kept["buffers"])

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """Exact class means; the released code takes means of batch means."""
        means, counts = oracle.class_means(w)
        return {"means": means, "held": counts > 0}, {"w": w, "buffers": oracle.buffers}

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """A mean and a label for each class that a client holds."""
        assert layout.linear_head is not None
        features = next(part.shape[1] for part in layout.parameters if part.name == layout.linear_head[0])
        return {"means": Sends(features, each_class=True), "held": Sends(1, nbytes=_LABEL, each_class=True)}


class HeaderTraining(ServerRule):
    """One SGD step of cross-entropy on every pair (mean features, class), client after client."""

    pair = "fedgh"

    header_lr: PositiveFloat | None = None
    """The learning rate of the global head on the server. The default is the clients' learning rate of the round, as in
    the paper."""
    train_header: bool = True
    """Train the global head. Without it the head stays random, as in the released code."""

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """Softmax regression in closed form: the gradient in the logits is p - onehot."""
        w, names = state.w.clone(), updates.layout.linear_head
        assert names is not None
        views = updates.layout.views(w)
        weight, bias = views[names[0]], views[names[1]] if names[1] else None
        rate = self.header_lr or float(updates.lr[:, 0].mean())
        pairs = updates.messages["held"].nonzero().tolist() if self.train_header else []
        for client, label in pairs:
            z = updates.messages["means"][client, label]
            error = torch.softmax(weight @ z + (0 if bias is None else bias), 0)
            error[label] -= 1
            weight.sub_(rate * error.outer(z))
            if bias is not None:
                bias.sub_(rate * error)
        return replace(state, w=w), updates.shares("uniform")


fedgh = method(
    "fedgh",
    client=PrivateBody,
    server=HeaderTraining,
    about="private bodies, a header trained on class means",
    cite="Yi et al., ACM MM 2023",
)
