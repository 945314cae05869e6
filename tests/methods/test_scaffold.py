"""SCAFFOLD against its rounds written out in numpy, and the traps that other implementations fall into."""

from typing import Any

import numpy as np
import pytest
from torch import nn

from fedkeel import Result
from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedavg import Average
from fedkeel.methods.scaffold import ControlledAverage, ControlledSGD
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, N, Vector, beside_empty_clients
from tests.helpers.quadratics import settled

LOCAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "falling rate": {"lr_decay": 0.5},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.3},
    "clipping": {"clip_norm": 0.2},
    "all": {"lr_decay": 0.7, "momentum": 0.6, "weight_decay": 0.1, "clip_norm": 0.3},
}


def gradient(w: Vector, x: Vector, y: Any, local: dict[str, Any]) -> Vector:
    """Of a batch, clipped as PyTorch does it, then decayed."""
    g = federation.gradient(w, x, y)
    return g * min(1.0, local.get("clip_norm", np.inf) / (np.linalg.norm(g) + 1e-6)) + local.get("weight_decay", 0) * w


def by_hand(
    option: str = "II", server_lr: float = 1.0, local: dict[str, Any] | None = None
) -> tuple[Vector, Vector, dict[int, Vector]]:
    """(x, c, the c_i of those who took part): in option II, c_i is the mean of the gradients of the client's steps.

    With momentum a gradient counts in its own step and, ever less, in all that follow.
    """
    local = local or {}
    momentum = local.get("momentum", 0.0)
    x = federation.start()
    c, own = np.zeros_like(x), {}
    for round_ in range(1, ROUNDS + 1):
        lr = LR * local.get("lr_decay", 1.0) ** (round_ - 1)
        moves, changes = [], []
        for client in federation.chosen(round_):
            y, v, seen, old = x.copy(), np.zeros_like(x), [], own.get(client, np.zeros_like(x))
            for batch in federation.batches(round_, client):
                seen.append(gradient(y, *batch, local))
                v = momentum * v + seen[-1] - old + c
                y = y - lr * v
            if option == "I":
                own[client] = gradient(x, *federation.clients()[client], local)
            else:
                counts = [sum(momentum**later for later in range(len(seen) - step)) for step in range(len(seen))]
                own[client] = np.average(seen, axis=0, weights=counts)
                if not momentum:  # then it is what the paper says
                    paper = old - c + (x - y) / (len(seen) * lr)
                    np.testing.assert_allclose(own[client], paper, rtol=0, atol=1e-12)
            moves.append(y - x)
            changes.append(own[client] - old)
        x = x + server_lr * np.mean(moves, axis=0)
        c = c + np.sum(changes, axis=0) / N
    return x, c, own


def kept(result: Result) -> dict[int, Vector]:
    """The c_i of everybody who has one."""
    return {client: message["c"].numpy() for client, message in result.simulation.world.desk.kept.items()}


def check(result: Result, expected: tuple[Vector, Vector, dict[int, Vector]]) -> None:
    x, c, own = expected
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.simulation.core.model.state.memory["c"], c, rtol=0, atol=1e-12)
    assert kept(result).keys() == own.keys()
    for client, control in kept(result).items():
        np.testing.assert_allclose(control, own[client], rtol=0, atol=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str, option: str) -> None:
    """The model is a chain of layers: stacks have closed forms for it, and whole steps."""
    model = nn.Sequential(federation.net())
    result, _ = federation.train({"name": "scaffold", "option": option, "server_lr": 0.8}, executor, model)
    check(result, by_hand(option, server_lr=0.8))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
@pytest.mark.parametrize("local", LOCAL)
def test_control_variates_are_mean_gradients_whatever_the_optimiser(local: str, executor: str) -> None:
    """The rate is the round's own, momentum changes the normaliser, decay and clipping are part of a gradient."""
    result, _ = federation.train("scaffold", executor, local=LOCAL[local])
    check(result, by_hand(local=LOCAL[local]))
    if LOCAL[local]:
        assert np.abs(by_hand()[0] - by_hand(local=LOCAL[local])[0]).max() > 1e-3


@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_option_one_takes_the_full_gradient_as_clipped_and_decayed(executor: str) -> None:
    result, _ = federation.train({"name": "scaffold", "option": "I"}, executor, local=LOCAL["all"])
    check(result, by_hand("I", local=LOCAL["all"]))


@pytest.mark.parametrize("option", ["I", "II"])
def test_after_one_full_batch_step_a_control_variate_is_the_gradient_and_not_its_negative(option: str) -> None:
    result, _ = federation.train(
        {"name": "scaffold", "option": option}, rounds=1, per_round=N, local={"batch_size": "full", "epochs": 1}
    )
    for client, data in enumerate(federation.clients()):
        expected = federation.gradient(federation.start(), *data)
        assert np.linalg.norm(expected) > 0.05
        np.testing.assert_allclose(kept(result)[client], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "local", [{"batch_size": 4, "epochs": 2}, {"batch_size": "full", "epochs": 6, "momentum": 0.9}]
)
def test_steps_are_counted_and_not_epochs(local: dict[str, Any]) -> None:
    """At a tiny learning rate the gradient is constant, and c_i is that gradient, however many steps were made.

    Client 3's samples fill its mini-batches, so that their mean is the full gradient.
    """
    result, ends = federation.train("scaffold", rounds=1, per_round=N, local={**local, "lr": 1e-7})
    assert ends[0].arrivals[3].steps == 6
    expected = federation.gradient(federation.start(), *federation.clients()[3])
    np.testing.assert_allclose(kept(result)[3], expected, rtol=0, atol=1e-6)


def test_the_servers_control_variate_is_the_mean_over_all_clients() -> None:
    for rounds in (1, ROUNDS):
        result, _ = federation.train("scaffold", rounds=rounds)
        c, total = result.simulation.core.model.state.memory["c"].numpy(), np.sum([*kept(result).values()], axis=0)
        assert np.abs(total).max() > 0.05
        np.testing.assert_allclose(c, total / N, rtol=0, atol=1e-12)


def test_who_is_absent_keeps_its_control_variate() -> None:
    one, two = (kept(federation.train("scaffold", rounds=rounds)[0]) for rounds in (1, 2))
    first, second = federation.chosen(1), federation.chosen(2)
    assert [*one] == first
    assert sorted(two) == sorted({*first, *second})
    for client in first:
        assert np.array_equal(one[client], two[client]) == (client not in second)


def test_the_clients_count_alike() -> None:
    _, ends = federation.train("scaffold")
    assert all(arrival.weight == pytest.approx(1 / 3) for end in ends for arrival in end.arrivals)


def test_twice_as_much_travels_as_in_fedavg() -> None:
    average, controlled = (federation.train(name)[0].summary for name in ("fedavg", "scaffold"))
    for key in ("bytes_up", "bytes_down"):
        assert controlled[key] == 2 * average[key]


def test_clients_without_data_change_nothing() -> None:
    """They can never take part, so they are none of the N."""
    alone, beside = (beside_empty_clients({"name": "scaffold"}, empty) for empty in (0, 6))
    np.testing.assert_allclose(beside, alone, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_unlike_clients_end_at_the_true_optimum_where_fedavg_does_not() -> None:
    found, optimum = settled(ControlledSGD(), ControlledAverage(), 200)
    np.testing.assert_allclose(found, optimum, rtol=0, atol=1e-9)
    drifted, _ = settled(ClientRule(), Average(), 200)
    assert np.abs(drifted - optimum).max() > 0.02
