"""Orders as messages to clients."""

from __future__ import annotations

from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.params import Layout
from fedkeel.server.stateful import Stateful
from fedkeel.wire.orders import Order
from fedkeel.wire.sizes import WITH_BUFFERS
from fedkeel.world.remote.message import Message, named
from fedkeel.world.remote.roster import Roster


class Packer(Stateful):
    """Makes messages of orders, and knows from which of its earlier jobs a client goes on."""

    saved = ("after",)

    def __init__(self, roster: Roster, rule: ClientRule, layout: Layout) -> None:
        self._roster, self._rule, self._layout = roster, rule, layout
        self.after: dict[int, int] = {}
        """By client: the last job that was taken in. The next one starts from what the client kept after that."""
        self.settled: dict[int, int] = {}
        """By client: what it kept before that job will not be needed again."""

    def heard(self, client: int, answer: Message) -> None:
        """A site may say that it has lost what it should go on from: that is told, once, and written down."""
        job, site = self.after.get(client, 0), self._roster.sites[client]
        if answer.facts.get("lost") is True and job and job not in self._roster.lost.get(site, ()):
            self._roster.lost.setdefault(site, []).append(job)
            self._roster.tell(f"{site} has lost what it kept after job {job}; it begins anew")
            self._roster.joined()

    def order(self, kind: str, order: Order) -> bytes:
        """A message of this kind that asks for a job or a survey."""
        facts = {name: getattr(order, name) for name in ("job", "client", "round", "wave", "version", "epochs")}
        facts |= {name: getattr(self, name).get(order.client, 0) for name in ("after", "settled")}
        received = named("received/", order.received)
        tensors = {**self.model(order.start, order.buffers), "lr": order.lr, **received}
        return Message(kind, {**self._roster.whose, **facts}, tensors).pack()

    def model(self, w: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """What a client gets of a model: the part that its method downloads."""
        part = self._rule.downloads
        sent = w if part == "all" else w[self._layout.mask(part)]
        return {"w": sent, "buffers": buffers} if part in WITH_BUFFERS else {"w": sent}
