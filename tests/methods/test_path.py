"""The length of a client's path against SGD on a constant gradient, and against FedNova's closed forms."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkeel.local.loop import Step, train
from fedkeel.methods import path
from fedkeel.methods.fedprox import Proximal
from fedkeel.methods.job import Job, Updates
from fedkeel.methods.path import path_length
from fedkeel.params import Layout

Client = tuple[list[float], int, int]
"""The learning rate of each epoch, the epochs that it does, the steps of one."""


def halving(step: Any, each: Any) -> Any:
    """Falls with every step, more slowly where epochs have more steps."""
    return 0.5 ** (step / each)


def walked(rates: list[float], epochs: int, each: int, momentum: float, pull: float) -> float:
    """How far SGD comes from 0 when every mini-batch's gradient is 1."""
    w = velocity = 0.0
    for epoch in range(epochs):
        for _ in range(each):
            velocity = momentum * velocity + (1.0 + pull * w)
            w -= rates[epoch] * velocity
    return -w


def lengths(clients: list[Client], momentum: float, pull: float) -> Tensor:
    rates, epochs, each = zip(*clients, strict=True)
    done = torch.tensor(epochs)[:, None]
    return path_length(
        torch.tensor(rates, dtype=torch.float64), done, done * torch.tensor(each)[:, None], momentum, pull
    )


@st.composite
def stacks(draw: st.DrawFn) -> list[Client]:
    """Clients whose rates reach as far as the longest of them; those behind a client's last epoch are noise."""
    most = draw(st.integers(1, 4))
    rate = st.floats(1e-3, 0.5)
    own = st.tuples(st.lists(rate, min_size=most, max_size=most), st.integers(1, most), st.integers(1, 6))
    clients = draw(st.lists(own, min_size=1, max_size=5))
    return [(rates[:epochs] + [1e3] * (most - epochs), epochs, each) for rates, epochs, each in clients]


momenta = st.one_of(st.just(0.0), st.floats(0, 0.99))
pulls = st.one_of(st.just(0.0), st.floats(0, 2))


@pytest.mark.slow
@given(stacks(), momenta, pulls)
def test_every_client_of_a_stack_walks_as_simulated(clients: list[Client], momentum: float, pull: float) -> None:
    got = lengths(clients, momentum, pull)
    assert got.shape == (len(clients), 1)
    expected = [walked(*client, momentum, pull) for client in clients]
    torch.testing.assert_close(got[:, 0], torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-13)


@pytest.mark.slow
@given(stacks(), momenta, pulls)
def test_a_stack_with_unequal_epochs_is_each_client_alone(clients: list[Client], momentum: float, pull: float) -> None:
    together = lengths(clients, momentum, pull)
    for row, (rates, epochs, each) in zip(together, clients, strict=True):
        alone = path_length(  # without a client axis, and without rates of epochs that it does not do
            torch.tensor(rates[:epochs], dtype=torch.float64),
            torch.tensor([epochs]),
            torch.tensor([epochs * each]),
            momentum,
            pull,
        )
        assert alone.shape == (1,)
        torch.testing.assert_close(row, alone, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("each", [1, 2, 7])
def test_closed_forms(epochs: int, each: int) -> None:
    steps, lr, b, mu = epochs * each, 0.07, 0.9, 0.8
    momentum = lr * (steps - b * (1 - b**steps) / (1 - b)) / (1 - b)
    forms = {(0.0, 0.0): steps * lr, (b, 0.0): momentum, (0.0, mu): (1 - (1 - lr * mu) ** steps) / mu}
    for (of, pull), expected in forms.items():
        got = lengths([([lr] * epochs, epochs, each)], of, pull)
        torch.testing.assert_close(got.item(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("curve", [None, halving])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("pull", [0.0, 0.8])
def test_long_jobs_lead_as_far_as_step_by_step(
    pull: float, momentum: float, nesterov: bool, curve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients with other numbers of steps, epochs at equal and at other rates, and more steps than go together."""
    monkeypatch.setattr(path, "_TOGETHER", 70)
    rates, epochs, each = [[0.1, 0.1, 0.02, 0.02]] * 2 + [[0.05, 0.05, 0.05, 1e3]], [4, 2, 3], [37, 64, 1]
    done = torch.tensor(epochs)[:, None]
    steps, lr = done * torch.tensor(each)[:, None], torch.tensor(rates, dtype=torch.float64)
    got = path_length(lr, done, steps, momentum, pull, nesterov, curve)
    expected = []
    for own, count, size in zip(rates, epochs, each, strict=True):
        length = velocity = 0.0
        for step in range(count * size):
            gradient = 1 - pull * length
            velocity = momentum * velocity + gradient
            moved = gradient + momentum * velocity if nesterov else velocity
            length += own[step // size] * (1 if curve is None else halving(step, size)) * moved
        expected.append(length)
    assert got[:, 0].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("momentum", "pull"), [(0.9, 0.0), (0.0, 0.5), (0.9, 0.5)])
def test_a_trillion_steps_take_no_longer(momentum: float, pull: float) -> None:
    got = lengths([([0.1, 0.05], 2, 10**12)], momentum, pull)
    limit = 1 / pull if pull else (0.1 + 0.05) * 10**12 / (1 - momentum)
    assert got.item() == pytest.approx(limit, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("pull", [0.0, 0.8])
def test_pytorchs_optimiser_walks_as_far(momentum: float, pull: float) -> None:
    rates, each = [0.1, 0.03], 3
    w = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    optimiser = torch.optim.SGD([w], lr=1.0, momentum=momentum)
    for rate in rates:
        optimiser.param_groups[0]["lr"] = rate
        for _ in range(each):
            optimiser.zero_grad()
            (w + pull / 2 * (w - 2.0) ** 2).backward()
            optimiser.step()
    got = lengths([(rates, 2, each)], momentum, pull)
    torch.testing.assert_close(got.item(), 2.0 - w.item(), rtol=1e-12, atol=0)


class Constant:
    """The same gradient, whatever the weights; three mini-batches an epoch."""

    def __init__(self, g: Tensor, epochs: list[int]) -> None:
        self.g, self.epochs = g, epochs

    def steps(self) -> Iterator[Step]:
        for step in range(3 * self.epochs[0]):
            yield Step(step // 3, sum(epochs > step // 3 for epochs in self.epochs))

    def grad(self, w: Tensor) -> Tensor:
        return self.g.expand_as(w).clone()


@pytest.mark.parametrize("curve", [None, halving])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_jobs_and_updates_know_how_far_the_loop_led(mu: float, momentum: float, nesterov: bool, curve: Any) -> None:
    """An update divided by its length is the mean gradient; a job does not know of its rule's pull."""
    epochs, g = torch.tensor([[3], [2], [1]]), torch.tensor([2.0, -1.0], dtype=torch.float64)
    same: dict[str, Any] = {
        "start": torch.ones(3, 2, dtype=torch.float64),
        "samples": torch.ones(3, 1),
        "epochs": epochs,
        "steps": 3 * epochs,
        "lr": torch.tensor([[0.1, 0.05, 0.02]], dtype=torch.float64).repeat(3, 1),
        "layout": Layout.of(nn.Linear(2, 1, bias=False)),
        "momentum": momentum,
        "nesterov": nesterov,
        "curve": curve,
    }
    job = Job(round=torch.ones(3, 1), buffers=torch.zeros(3, 0), received={}, kept={}, **same)
    rule = Proximal(mu=mu)
    w = train(job, rule, Constant(g, epochs[:, 0].tolist())).w  # type: ignore[arg-type]
    updates = Updates(w=w, messages={}, pull=rule.pull, **same)
    torch.testing.assert_close(-updates.delta / updates.length, g.expand(3, -1), rtol=1e-12, atol=0)
    free = train(job, Proximal(mu=0), Constant(g, epochs[:, 0].tolist())).w  # type: ignore[arg-type]
    torch.testing.assert_close((job.start - free) / job.length, g.expand(3, -1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("curve", [None, halving])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5), (0.6, 0.5)])
def test_nesterov_and_a_curve_are_walked_as_torch_walks(
    momentum: float, pull: float, nesterov: bool, curve: Any
) -> None:
    """PyTorch's SGD on the loss w + pull w^2 / 2, whose gradient is one but for the pull."""
    nesterov = nesterov and momentum > 0
    rates, epochs, each = [[0.1, 0.05, 0.02], [0.3, 0.2, 9.0]], [3, 2], [4, 3]
    expected = []
    for own, count, size in zip(rates, epochs, each, strict=True):
        w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD([w], lr=1, momentum=momentum, nesterov=nesterov)
        for step in range(count * size):
            optimizer.param_groups[0]["lr"] = own[step // size] * (1 if curve is None else 0.5 ** (step / size))
            optimizer.zero_grad()
            (w + pull * w**2 / 2).sum().backward()
            optimizer.step()
        expected.append(-w.item())
    done, sizes = torch.tensor(epochs)[:, None], torch.tensor(each)[:, None]
    lr = torch.tensor(rates, dtype=torch.float64)
    got = path_length(lr, done, done * sizes, momentum, pull, nesterov, curve)
    assert got[:, 0].tolist() == pytest.approx(expected, rel=1e-12)


def test_the_length_is_a_number_of_the_rates_type() -> None:
    lr = torch.full((2, 2), 0.1)
    for momentum in (0.0, 0.9):
        got = path_length(lr, torch.tensor([[2], [1]]), torch.tensor([[6], [3]]), momentum)
        assert got.dtype == torch.float32
        assert got.shape == (2, 1)


@pytest.mark.parametrize("curve", [None, halving], ids=["plain", "curve"])
def test_the_length_of_a_client_does_not_depend_on_who_is_with_it(curve: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    lr = torch.rand(40, 5, generator=draw, dtype=torch.float64) / 5
    lr[:20] = lr[:20, :1]
    epochs = torch.randint(1, 6, (40, 1), generator=draw)
    steps = epochs * torch.randint(1, 300, (40, 1), generator=draw)
    together = path_length(lr, epochs, steps, 0.9, 0.3, curve=curve)
    for client in range(40):
        alone = path_length(lr[[client]], epochs[[client]], steps[[client]], 0.9, 0.3, curve=curve)
        assert torch.equal(alone[0], together[client])
