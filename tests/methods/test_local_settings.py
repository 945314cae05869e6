"""Every method with every way of local training: it trains as it is told, or says why it cannot."""

from typing import Any

import numpy as np
import pytest

from fedkeel import Experiment, InputError
from fedkeel.methods import methods
from tests.helpers import federation
from tests.helpers.federation import LR, SIZES
from tests.helpers.methods import few, small

SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "lr": 0.01},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "schedule over rounds": {"schedule": {"kind": "exponential", "gamma": 0.2}},
    "schedule over steps": {"schedule": {"kind": "cosine", "over": "steps"}},
}
PATHS = {"fedasmu", "fedcm", "fedlga", "fednova", "fedssmu", "mofedsam", "scaffold"}
"""They read gradients off paths, which momentum and schedules only lengthen or shorten, by a factor that is known."""
OWN_RATES = {"fedent", "fednorm"}
REFUSED = {
    "adam": PATHS | OWN_RATES | {"asofed", "fedagg", "mimelite"},
    "momentum": {"mimelite"},
    "nesterov": {"mimelite"},
    "schedule over rounds": OWN_RATES,
    "schedule over steps": OWN_RATES | {"fedagg"},
}
SENTENCES = {
    "adam": r"^local\.optimizer: adam cannot be used with {name}, as .+; use sgd$",
    "momentum": r"{name}.+local\.momentum=0\.9 would be a second momentum; ",
    "nesterov": r"{name}.+local\.momentum=0\.9 would be a second momentum; ",
    "schedule over rounds": r"^local\.schedule: exponential over rounds cannot be used with {name}, as .+; remove it$",
    "schedule over steps": r"^local\.schedule: cosine over steps cannot be used with {name}, as .+; remove it$",
}


def trained(name: str, local: dict[str, Any], executor: str = "serial") -> federation.Vector:
    settings = {"rounds": 2, "schedule": few(name), "local": local}
    result, _ = federation.train(small(name), executor, federation.net(4), **settings)
    models = [result.model, *(result.client_model(client) for client in range(federation.N))]
    return np.concatenate([p.detach().numpy().flatten() for net in models for p in net.parameters()])


@pytest.mark.parametrize("told", list(SETTINGS))
@pytest.mark.parametrize("name", list(methods()))
def test_every_method_trains_as_told_or_says_why_not(name: str, told: str) -> None:
    local = SETTINGS[told]
    if name in REFUSED[told]:
        with pytest.raises(InputError, match=SENTENCES[told].format(name=name)):
            trained(name, local)
        return
    plain = trained(name, {"lr": local.get("lr", LR)})
    assert np.abs(trained(name, local) - plain).max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("told", ["nesterov", "schedule over steps"])
@pytest.mark.parametrize("name", list(methods()))
def test_stacks_train_as_clients_alone(name: str, told: str) -> None:
    if name not in REFUSED[told]:
        alone, stacked = (trained(name, SETTINGS[told], executor) for executor in ("serial", "stack 3"))
        np.testing.assert_allclose(stacked, alone, rtol=1e-8, atol=1e-9)


def test_nesterov_is_another_momentum() -> None:
    assert np.abs(trained("fedavg", SETTINGS["nesterov"]) - trained("fedavg", SETTINGS["momentum"])).max() > 1e-6


@pytest.mark.parametrize(
    ("algorithm", "local", "reason"),
    [
        ({"name": "fedagg", "reading": "literal"}, "schedule over rounds", "Algorithm 1 finds its own learning rates"),
        (
            {"name": "fedasmu", "reading": "literal"},
            "schedule over steps",
            "a client's path by one learning rate",
        ),
    ],
)
def test_readings_that_refuse_more(algorithm: dict[str, Any], local: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Experiment(algorithm=algorithm, local=SETTINGS[local])
    assert Experiment(algorithm=algorithm["name"], local=SETTINGS[local])


# FedNova by hand, where momentum and schedule make the length of a path.


def path(rates: list[float], gradient: Any, w: Any, momentum: float) -> Any:
    """Nesterov's steps from `w` at these rates, given the gradient of each."""
    velocity = 0.0
    for step, rate in enumerate(rates):
        g = gradient(step, w)
        velocity = momentum * velocity + g
        w = w - rate * (g + momentum * velocity)
    return w


def test_fednova_by_hand_with_nesterov_and_a_cosine() -> None:
    """a_i is how far clients would have come with gradients of one."""
    local = {"momentum": 0.6, "nesterov": True, "schedule": {"kind": "cosine", "over": "steps", "final": 0.1}}
    result, _ = federation.train("fednova", local=local)
    w = federation.start()
    for round in range(1, federation.ROUNDS + 1):
        chosen = federation.chosen(round)
        shares = np.array([SIZES[c] for c in chosen]) / sum(SIZES[c] for c in chosen)
        moves, lengths = [], []
        for client in chosen:
            batches = [*federation.batches(round, client)]
            turns = np.cos(np.pi * np.arange(len(batches)) / len(batches))
            rates = [LR * (0.1 + 0.9 * (1 + turn) / 2) for turn in turns]
            own = path(rates, lambda step, w, b=batches: federation.gradient(w, *b[step]), w, 0.6)
            moves.append(own - w)
            lengths.append(-path(rates, lambda *_: 1.0, 0.0, 0.6))
        effective = float(shares @ lengths)
        w = w + effective * sum(p * d / a for p, d, a in zip(shares, moves, lengths, strict=True))
    np.testing.assert_allclose(federation.weights(result), w, rtol=1e-8, atol=1e-10)
