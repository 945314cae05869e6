"""FedBABU (Oh et al., ICLR 2022): only the body is trained and shared; clients fine-tune before they are tested."""

from __future__ import annotations

from fedkeel.methods.client import ClientRule, body_objection
from fedkeel.methods.fedavg import UniformAverage
from fedkeel.methods.registry import method
from fedkeel.params import Layout, Part


class BodyOnly(ClientRule):
    """The head keeps its first, random weights, the same for all; `finetune` says how clients adapt at the end."""

    downloads = uploads = "body"
    finetune_epochs = 5

    @property
    def trains(self) -> Part:
        """Weight decay, momentum and clipping see the body alone, too."""
        return "body"

    def objection(self, layout: Layout, momentum: float) -> str | None:
        return body_objection(layout, "it trains the body alone")


fedbabu = method(
    "fedbabu",
    client=BodyOnly,
    server=UniformAverage,
    about="shared body, head never trained, fine-tuned per client",
    cite="Oh et al., ICLR 2022",
)
