"""MOON (Li et al., CVPR 2021): features near the global model's and far from those of the client's previous model."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedkeel.methods.client import ClientRule, Job, Message, Oracle, body_objection
from fedkeel.methods.fedavg import Average
from fedkeel.methods.registry import method
from fedkeel.params import Layout


class Contrastive(ClientRule):
    """Adds mu * contrast to the loss of every sample.

    z is what the head sees. The paper's network has a projection between body and head: `model.projection=256` adds
    one, and methods are compared fairly only on the same network.
    """

    features = "used"

    mu: NonNegativeFloat = 1.0
    """The weight of the contrastive loss. The paper's best values are 5 on CIFAR-10 and 1 on CIFAR-100 and
    Tiny-ImageNet."""
    temperature: PositiveFloat = 0.5
    """The temperature of the contrastive loss (tau in the paper)."""

    def objection(self, layout: Layout, momentum: float) -> str | None:
        return body_objection(layout, "its contrast trains the body")

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        """Before its first job a client's own model is the first global one."""
        return {"w": w, "buffers": buffers}

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        """The gradient of loss and contrast; both other models are frozen and in evaluation mode."""
        sent = oracle.features(job.start, job.buffers)
        own = oracle.features(job.kept["w"], job.kept["buffers"])
        return oracle.grad_with(w, self.penalty, sent, own)

    def penalty(self, z: Tensor, sent: Tensor, own: Tensor) -> Tensor:
        """mu times the contrast of each sample."""
        return self.mu * contrast(z, sent, own, self.temperature)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {}, {"w": w, "buffers": oracle.buffers}


def contrast(z: Tensor, sent: Tensor, own: Tensor, temperature: float) -> Tensor:
    """-log(e^(cos(z, sent)/tau) / (e^(cos(z, sent)/tau) + e^(cos(z, own)/tau))), the paper's Eq. 3."""
    near, far = (cosine_similarity(z, other, dim=-1) / temperature for other in (sent, own))
    return torch.nn.functional.softplus(far - near)


moon = method(
    "moon",
    client=Contrastive,
    server=Average,
    about="contrast between global and previous local features",
    cite="Li et al., CVPR 2021",
)
