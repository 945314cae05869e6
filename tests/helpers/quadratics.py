"""The training loop on quadratics: their gradients, a job, and the model that a method settles on."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedkeel.local.loop import Step, train
from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job, Updates
from fedkeel.methods.server import ServerRule
from fedkeel.methods.types import Message
from fedkeel.params import Layout
from tests.helpers.federation import Vector


class Quadratic:
    """f(w) = 1/2 a (w - b)^2 for each coordinate, `steps` mini-batches an epoch; a and b [k, D]."""

    def __init__(self, a: Tensor, b: Tensor, epochs: list[int], steps: int = 2) -> None:
        self.a, self.b, self.epochs, self.each = a, b, epochs, steps
        self.seen: list[int] = []

    def restore(self, buffers: Tensor) -> None:
        raise AssertionError("no rule here changes buffers")

    def steps(self) -> Iterator[Step]:
        """A stack's clients come with descending epochs."""
        for step in range(max(self.epochs) * self.each):
            epoch = step // self.each
            self.seen.append(epoch)
            active = sum(epochs > epoch for epochs in self.epochs)
            # each client's epoch, or one for all: the loop takes both
            yield Step(epoch if step % 2 else torch.full((active,), epoch), active)

    def grad(self, w: Tensor) -> Tensor:
        return self.a[: len(w)] * (w - self.b[: len(w)])


def job(start: Tensor, lr: Tensor, epochs: list[int] | None = None, momentum: float = 0.0, **more: Message) -> Job:
    """Two steps an epoch from these weights [k, D]."""
    count = len(start)
    each = torch.tensor(epochs or [lr.shape[1]] * count)[:, None]
    return Job(
        round=torch.ones(count, 1),
        start=start,
        buffers=torch.zeros(count, 0),
        epochs=each,
        steps=2 * each,
        lr=lr,
        momentum=momentum,
        samples=torch.ones(count, 1),
        layout=Layout.of(nn.Linear(start.shape[-1], 1, bias=False)),
        received=more.get("received", {}),
        kept=more.get("kept", {}),
    )


def settled(client: ClientRule, server: ServerRule, rounds: int, epochs: int = 5) -> tuple[Vector, Vector]:
    """(The model a method ends with, given three unlike quadratics that all take part; the optimum of their mean)."""
    rng = torch.Generator().manual_seed(3)
    a, b = (torch.rand(3, 4, dtype=torch.float64, generator=rng) * 2 + 0.5 for _ in range(2))
    x = torch.zeros(4, dtype=torch.float64)
    lr = torch.full((3, epochs), 0.1, dtype=torch.float64)
    kept = {name: start.expand(3, 4) for name, start in client.initial(x, x[:0]).items()}
    state = server.init(x, job(x[None], lr[:1]).layout, torch.ones(3))
    for _ in range(rounds):
        received = {name: sent.expand(3, 4) for name, sent in server.send(state, 0).items()}
        given = job(state.w.expand(3, 4), lr, received=received, kept=kept)
        outcome = train(given, client, Quadratic(a, b, [epochs] * 3))
        updates = Updates(
            outcome.w, given.start, given.samples, given.epochs, given.steps, lr, outcome.message, given.layout
        )
        kept, (state, _) = outcome.kept, server.aggregate(state, updates)
    return server.evaluated(state).numpy(), ((a * b).sum(0) / a.sum(0)).numpy()
