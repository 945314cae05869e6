"""The loop on quadratics whose trajectories are written out in numpy, alone and in stacks."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkeel.algorithms.rules import ClientRule, Job, Message, Oracle
from fedkeel.local.loop import train


class Quadratic:
    """f(w) = 1/2 a (w - b)^2 for each coordinate, `steps` mini-batches an epoch; a and b [..., D]."""

    def __init__(self, a: Tensor, b: Tensor, steps: int = 2) -> None:
        self.a, self.b, self.steps = a, b, steps
        self.epochs: list[int] = []

    def bind(self, w: Tensor) -> Tensor:
        return w.clone()

    def batches(self, epoch: int) -> Iterator[None]:
        self.epochs.append(epoch)
        for _ in range(self.steps):
            yield

    def grad(self, w: Tensor) -> Tensor:
        return self.a * (w - self.b)


class Proximal(ClientRule):
    mu: float = 0.5

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(w) + self.mu * (w - job.start)


class Counting(ClientRule):
    """Uses every hook: halves the rate, starts elsewhere, counts steps, sends and keeps."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        job.carry["count"] = torch.zeros(1)
        return Job(
            job.round, job.start + job.received["shift"], job.lr / 2, job.samples, job.received, job.kept, job.carry
        )

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        job.carry["count"] += 1
        return oracle.grad(w)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"count": job.carry["count"]}, {"jobs": job.kept.get("jobs", torch.zeros(1)) + 1}


def job(start: Tensor, lr: Tensor, **more: Message) -> Job:
    return Job(1, start, lr, torch.ones(*start.shape[:-1], 1), more.get("received", {}), more.get("kept", {}))


def by_hand(
    a: np.ndarray, b: np.ndarray, w: np.ndarray, rates: list[float], steps: int, mu: float, momentum: float
) -> np.ndarray:
    start, velocity = w.copy(), np.zeros_like(w)
    for rate in rates:
        for _ in range(steps):
            velocity = momentum * velocity + a * (w - b) + mu * (w - start)
            w = w - rate * velocity
    return w


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_trajectory_on_a_quadratic(mu: float, momentum: float) -> None:
    rng = np.random.default_rng(0)
    a, b, w = rng.uniform(0.5, 2, 4), rng.normal(size=4), rng.normal(size=4)
    oracle = Quadratic(torch.tensor(a), torch.tensor(b), steps=3)
    rates = [0.1, 0.05]
    _, got, _, _ = train(
        job(torch.tensor(w), torch.tensor(rates, dtype=torch.float64)), Proximal(mu=mu), oracle, momentum
    )
    np.testing.assert_allclose(got, by_hand(a, b, w, rates, 3, mu, momentum), rtol=1e-12)
    assert oracle.epochs == [0, 1]


def test_a_stack_trains_as_each_client_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b, start = (torch.rand(5, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    lr = torch.rand(5, 3, dtype=torch.float64, generator=generator)  # every client its own rates
    _, stacked, _, _ = train(job(start, lr), Proximal(), Quadratic(a, b), momentum=0.5)
    for i in range(5):
        _, alone, _, _ = train(job(start[i], lr[i]), Proximal(), Quadratic(a[i], b[i]), momentum=0.5)
        torch.testing.assert_close(stacked[i], alone, rtol=1e-12, atol=0)


def test_every_hook_is_called_and_start_weights_stay() -> None:
    start = torch.tensor([1.0, 2.0])
    oracle = Quadratic(torch.ones(2), torch.zeros(2), steps=2)
    given = job(
        start, torch.tensor([0.2, 0.2]), received={"shift": torch.tensor([1.0, 0.0])}, kept={"jobs": torch.ones(1)}
    )
    begun, w, message, kept = train(given, Counting(), oracle)
    torch.testing.assert_close(begun.lr, torch.tensor([0.1, 0.1]))
    torch.testing.assert_close(w, torch.tensor([2.0, 2.0]) * 0.9**4)
    assert message["count"].item() == 4
    assert kept["jobs"].item() == 2
    assert start.tolist() == [1.0, 2.0]
