"""A toy method that uses every hook, end to end, against the same method written out by hand.

Its clients take the gradient half a step ahead, pull towards a server momentum they are sent, and remember how often
they were asked. Its server steps by the clients' reported mean gradients, keeps the momentum, and hands out a running
mean of its models.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, FedkeelError, RoundEnd, run, streams
from fedkeel.methods import ClientRule, Job, Message, Oracle, ServerRule, ServerState, Updates, method, registry
from fedkeel.methods.types import Sends
from fedkeel.params import Layout

SEED, CLIENTS, PER_ROUND, ROUNDS, EPOCHS, BATCH, LR = 5, 6, 3, 4, 2, 4, 0.1
SIZES = [3, 9, 4, 12, 1, 7]


def asked(job: Job) -> Tensor:
    return job.kept.get("asked", torch.zeros_like(job.samples))


class Ahead(ClientRule):
    look: float = 0.5

    def begin(self, job: Job, oracle: Oracle) -> Job:
        return replace(job, start=job.start + 0.01, lr=job.lr / (1 + asked(job)))

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        ahead = oracle.grad(w - self.look * job.lr[:, :1] * oracle.grad(w))
        carry = {"sum": job.carry.get("sum", torch.zeros_like(w)) + ahead}
        return ahead + 0.1 * job.received["momentum"], replace(job, carry=carry)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"sum": job.carry["sum"], "final": w}, {"asked": asked(job) + 1, "final": w}

    def sends(self, layout: Layout, received: Message) -> dict[str, Sends]:
        return {name: Sends(layout.size) for name in ("sum", "final")}


class Remember(ServerRule):
    gain: float = 0.2

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        assert layout.size == w.numel()
        assert samples.tolist() == SIZES
        return ServerState(w, {"momentum": torch.zeros_like(w), "mean": w})

    def send(self, state: ServerState, client: int) -> Message:
        return {"momentum": state.memory["momentum"]}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        assert torch.equal(updates.messages["final"], updates.w)
        gradient = (updates.messages["sum"] / updates.steps).mean(dim=0)
        w = state.w + updates.delta.mean(dim=0) - self.gain * gradient
        memory = {"momentum": 0.5 * state.memory["momentum"] + gradient, "mean": 0.5 * (state.memory["mean"] + w)}
        return ServerState(w, memory), torch.full((len(updates.w),), 1 / len(updates.w))

    def evaluated(self, state: ServerState) -> Tensor:
        return state.memory["mean"]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    registry.enrol(method("toy", client=Ahead, server=Remember, about="uses every hook", cite="nobody"))
    return "toy"


def clients() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [(rng.normal(size=(n, 3)), rng.integers(0, 2, n)) for n in SIZES]


def by_hand(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(The running mean, the last model), weights of a bias-free linear model flattened."""
    data = [(torch.tensor(x).float().double(), torch.tensor(y)) for x, y in clients()]
    w = mean = weight.double().flatten()
    momentum, asked = torch.zeros_like(w), dict.fromkeys(range(CLIENTS), 0)

    def gradient(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
        leaf = at.clone().requires_grad_()
        return torch.autograd.grad(cross_entropy(x @ leaf.view(2, 3).T, y), leaf)[0]

    for round_ in range(1, ROUNDS + 1):
        chosen = streams.generator(SEED, "sampling", round_).choice(CLIENTS, PER_ROUND, replace=False)
        moved, gradients = [], []
        for client in sorted(chosen.tolist()):
            x, y = data[client]
            rate = LR / (1 + asked[client])
            mine, total, steps = w + 0.01, torch.zeros_like(w), 0
            for epoch in range(EPOCHS):
                order = streams.permutations(streams.keys(SEED, "batches", round_, client, epoch), len(y))[0]
                for part in torch.tensor(order).split(BATCH):
                    ahead = gradient(mine - 0.5 * rate * gradient(mine, x[part], y[part]), x[part], y[part])
                    total, steps = total + ahead, steps + 1
                    mine = mine - rate * (ahead + 0.1 * momentum)
            asked[client] += 1
            moved.append(mine - w)
            gradients.append(total / steps)
        step = torch.stack(gradients).mean(dim=0)
        w = w + torch.stack(moved).mean(dim=0) - 0.2 * step
        momentum, mean = 0.5 * momentum + step, 0.5 * (mean + w)
    return mean, w


@pytest.mark.parametrize(
    "executor",
    [
        {"kind": "serial"},
        pytest.param({"kind": "vectorised", "stack": 1, "channels_last": False}, marks=pytest.mark.slow),
        {"kind": "vectorised", "stack": 3, "channels_last": False},
        pytest.param({"kind": "processes", "stack": 0, "channels_last": False, "workers": 2}, marks=pytest.mark.slow),
        {"kind": "processes", "stack": 2, "channels_last": False, "workers": 3},
    ],
    ids=lambda executor: f"{executor['kind']} {executor.get('stack', 0)}",
)
def test_every_hook_end_to_end(toy: str, executor: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    ends: list[RoundEnd] = []
    result = run(
        Experiment(
            seed=SEED,
            rounds=ROUNDS,
            per_round=PER_ROUND,
            dtype="float64",
            algorithm=toy,
            executor=executor,
            local={"epochs": EPOCHS, "batch_size": BATCH, "lr": LR},
        ),
        data=FederatedData.from_clients(clients(), test=clients()[3]),
        model=net,
        progress=ends.append,
    )
    mean, last = by_hand(net.weight.detach())
    torch.testing.assert_close(result.model.weight.flatten(), mean, rtol=0, atol=1e-9)  # type: ignore[union-attr, operator]
    assert not torch.allclose(mean, last, atol=1e-3), "the evaluated model must differ for this test to mean anything"
    model = 8 * 6
    assert result.summary["bytes_down"] == ROUNDS * PER_ROUND * 2 * model  # weights and momentum
    assert result.summary["bytes_up"] == ROUNDS * PER_ROUND * 3 * model  # weights, sum, final
    assert all(a.weight == pytest.approx(1 / PER_ROUND) for end in ends for a in end.arrivals)
    rates: dict[int, list[float]] = {}
    for arrival in (a for end in ends for a in end.arrivals):
        rates.setdefault(arrival.client, []).append(arrival.learning_rates[0])
    assert max(map(len, rates.values())) > 1
    for used in rates.values():
        assert used == pytest.approx([LR / (1 + n) for n in range(len(used))])


class Early(ClientRule):
    def begin(self, job: Job, oracle: Oracle) -> Job:
        oracle.grad(job.start)
        return job


def test_a_gradient_without_a_batch_is_refused(toy: str) -> None:
    registry.enrol(method(toy, client=Early, server=registry.find("fedavg").server, about="", cite=""))
    with pytest.raises(FedkeelError, match="where there is no mini-batch"):
        run(
            Experiment(rounds=1, algorithm=toy),
            data=FederatedData.from_clients(clients(), clients()[0]),
            model=nn.Linear(3, 2),
        )
