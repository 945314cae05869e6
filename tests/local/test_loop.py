"""The loop on quadratics whose trajectories are written out in numpy, alone and in stacks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkeel.errors import FedkeelError
from fedkeel.local.loop import train
from fedkeel.methods.client import ClientRule, Course
from fedkeel.methods.course import Trail
from fedkeel.methods.job import Job
from fedkeel.methods.oracle import Oracle
from fedkeel.methods.types import Message
from tests.helpers.quadratics import Quadratic, job


class Proximal(ClientRule):
    mu: float = 0.5

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(w) + self.mu * (w - job.start)


class Counting(ClientRule):
    """Uses every hook: halves the rate, starts elsewhere, counts steps, sends and keeps."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        carry = {"count": torch.zeros_like(job.samples)}
        return replace(job, start=job.start + job.received["shift"], lr=job.lr / 2, carry=carry)

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        return oracle.grad(w), replace(job, carry={"count": job.carry["count"] + 1})

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"count": job.carry["count"]}, {"jobs": job.kept.get("jobs", torch.zeros_like(job.samples)) + 1}


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
    oracle = Quadratic(torch.tensor(a)[None], torch.tensor(b)[None], [2], steps=3)
    rates = [0.1, 0.05]
    given = job(torch.tensor(w)[None], torch.tensor([rates], dtype=torch.float64), momentum=momentum)
    got = train(given, Proximal(mu=mu), oracle).w[0]
    np.testing.assert_allclose(got, by_hand(a, b, w, rates, 3, mu, momentum), rtol=1e-12)
    assert oracle.seen == [0, 0, 0, 1, 1, 1]


def stack() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    a, b, start = (torch.rand(5, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    return a, b, start, torch.rand(5, 3, dtype=torch.float64, generator=generator)  # every client its own rates


@pytest.mark.parametrize("epochs", [[3, 3, 3, 3, 3], [3, 3, 2, 1, 1], [3, 1, 1, 1, 1]])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_stack_trains_as_each_client_alone(epochs: list[int], momentum: float) -> None:
    a, b, start, lr = stack()
    stacked = train(job(start, lr, epochs, momentum), Proximal(), Quadratic(a, b, epochs)).w
    for i, own in enumerate(epochs):
        only = slice(i, i + 1)
        given = job(start[only], lr[only, :own], None, momentum)
        alone = train(given, Proximal(), Quadratic(a[only], b[only], [own])).w
        torch.testing.assert_close(stacked[only], alone, rtol=1e-12, atol=0)


def test_who_is_done_leaves_the_stack_with_what_it_carried() -> None:
    a, b, start, lr = stack()
    epochs = [3, 2, 2, 1, 1]
    given = job(start, lr, epochs, received={"shift": torch.ones(5, 4)})
    outcome = train(given, Counting(), Quadratic(a, b, epochs, steps=2))
    assert outcome.message["count"].flatten().tolist() == [6, 4, 4, 2, 2]
    assert outcome.kept["jobs"].shape == (5, 1)


class Late(ClientRule):
    """Carries something only from its third step on, when others have left."""

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        carry = {**job.carry, "steps": job.carry.get("steps", torch.zeros_like(job.samples)) + 1}
        if int(carry["steps"][0]) == 3:
            carry["late"] = w
        return oracle.grad(w), replace(job, carry=carry)


def test_what_is_carried_late_is_named() -> None:
    a, b, start, lr = stack()
    epochs = [3, 2, 2, 1, 1]
    with pytest.raises(FedkeelError, match="must carry late in every step, but carries it only in some"):
        train(job(start, lr, epochs), Late(), Quadratic(a, b, epochs, steps=2))


def test_a_limit_ends_training_early() -> None:
    a, b, start, lr = stack()
    two = train(job(start, lr), Proximal(mu=0), Quadratic(a, b, [3] * 5), limit=2).w
    torch.testing.assert_close(two, train(job(start, lr[:, :1]), Proximal(mu=0), Quadratic(a, b, [1] * 5)).w)


def test_the_servers_vector_is_never_written_to() -> None:
    a, b, start, lr = stack()
    shared = start[0].expand(5, -1)
    before = shared.clone()
    train(job(shared, lr, momentum=0.9), Proximal(), Quadratic(a, b, [3] * 5))
    assert torch.equal(shared, before)


def test_every_hook_is_called_and_start_weights_stay() -> None:
    start = torch.tensor([[1.0, 2.0]])
    oracle = Quadratic(torch.ones(1, 2), torch.zeros(1, 2), [2], steps=2)
    received, kept = {"shift": torch.tensor([[1.0, 0.0]])}, {"jobs": torch.ones(1, 1)}
    given = job(start, torch.tensor([[0.2, 0.2]]), received=received, kept=kept)
    outcome = train(given, Counting(), oracle)
    torch.testing.assert_close(outcome.job.lr, torch.tensor([[0.1, 0.1]]))
    torch.testing.assert_close(outcome.w, torch.tensor([[2.0, 2.0]]) * 0.9**4)
    assert outcome.message["count"].item() == 4
    assert outcome.kept["jobs"].item() == 2
    assert start.tolist() == [[1.0, 2.0]]


class Returns(ClientRule):
    """Returns from one hook what a test wants it to."""

    def __init__(self, hook: str, found: Any) -> None:
        super().__init__()
        self.__dict__.update(_hook=hook, _found=found)

    def begin(self, job: Job, oracle: Oracle) -> Job:
        return self._found(job) if self._hook == "begin" else job

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return self._found(job) if self._hook == "end" else ({}, job.kept)


class Watches(Returns):
    watches_epochs = True


class Steps(Returns):
    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return self._found(oracle.grad(w))


class Advances(Returns):
    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        return self._found(oracle.grad(w), job)


LIKE_W = r"must return a tensor \[k, D\] like w, here a tensor \[5, 4\] of float64; got"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Steps("step", lambda g: g.norm(dim=-1, keepdim=True)), rf"Steps: step {LIKE_W} .*\[5, 1\] of float64"),
        (Steps("step", lambda g: g.float()), rf"Steps: step {LIKE_W} a tensor \[5, 4\] of float32"),
        (Steps("step", lambda _: None), rf"Steps: step {LIKE_W} None"),
        (Steps("step", lambda g: (g, 1)), rf"Steps: step {LIKE_W} \(a tensor \[5, 4\] of float64, 1\)"),
        (Advances("advance", lambda g, _: g), r"Advances: advance must return a pair \(.*; got a tensor"),
        (Advances("advance", lambda g, job: (job, g)), r"Advances: advance must return a pair .*; got \(a Job, a t"),
        (Advances("advance", lambda g, job: (g[:, :1], job)), rf"Advances: advance {LIKE_W} .*\[5, 1\] of float64"),
        (Returns("begin", lambda _: None), r"Returns: begin must return a Job, .*; got None"),
        (
            Watches("begin", lambda job: replace(job, course=Course(ascent=0.1))),
            r"Watches: begin set a course with an ascent",
        ),
        (
            Returns("begin", lambda job: replace(job, course=Course(pull=0.5))),
            r"Returns: begin must return a job whose course has a tensor \[k, 1\] as its pull; got 0.5",
        ),
        (
            Returns("begin", lambda job: replace(job, course=Course(trail=Trail(job.start, job.start, 0.9, 1.0)))),
            r"Returns: begin must return a job whose course has a tensor \[k, 1\] as its gain; got 1.0",
        ),
        (Returns("end", lambda _: None), r"Returns: end must return a pair of dictionaries .*; got None"),
        (Returns("end", lambda job: job.kept), r"Returns: end must return a pair of dictionaries .*; got a dict"),
        (
            Returns("end", lambda _: ({}, {}, {})),
            r"Returns: end must return a pair of dictionaries .*; got \(a dict, a dict, a dict\)",
        ),
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_what_a_rule_returns_is_checked(rule: ClientRule, said: str, momentum: float) -> None:
    a, b, start, lr = stack()
    with pytest.raises(FedkeelError, match=f"^{said}"):
        train(job(start, lr, momentum=momentum), rule, Quadratic(a, b, [3] * 5))
