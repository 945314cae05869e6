"""FedAgg's other readings, written out in numpy: units of phi1, clients that move along phi1, Algorithm 1's start."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel import Experiment, InputError, RoundEnd
from fedkeel.local.oracle import BatchOracle
from tests.helpers import federation, native
from tests.helpers.federation import EVERY_EXECUTOR, EXECUTORS, LR, SIZES, Vector

Settings = dict[str, Any]
D, L, BYTES, ALPHA = federation.FEATURES * federation.CLASSES, 3, 8, 0.1
AGGREGATED = {"direction": "aggregated"}
LITERAL = {"reading": "literal", "sweeps": 4}
OPTIONS: list[Settings] = [
    {"phi1": "sum"},
    {"phi1": "sum", "probe": True},
    {"phi1": "sum", "closed_loop": True},
    AGGREGATED,
    {**AGGREGATED, "gradient_batches": "full"},
    {**AGGREGATED, "closed_loop": True, "cap": 1.0},
    {**AGGREGATED, "phi1": "sum"},
    {**AGGREGATED, "phi1": "sum", "gradient_batches": "full"},
    {**AGGREGATED, "probe": True},
    {**AGGREGATED, "probe": True, "gradient_batches": "full"},
    {**AGGREGATED, "phi1": "sum", "probe": True},
    {**LITERAL, "initial_rate": 0.7},
    {**AGGREGATED, **LITERAL},
    {**AGGREGATED, **LITERAL, "initial_rate": 0.7, "gradient_batches": "full"},
]


def solve(start: Vector, phi1: Vector, phi2: Vector) -> Vector:
    """The rates of least cost, by least squares: phi2 [L, D] are the points after each epoch."""
    epochs = np.arange(len(phi1))
    rows = [np.sqrt(1 - ALPHA) * (phi1.T * (epochs <= k)) for k in epochs]
    wanted = [np.sqrt(1 - ALPHA) * (start - phi2[k]) for k in epochs]
    left, right = [np.sqrt(ALPHA) * np.eye(len(phi1)), *rows], [np.zeros(len(phi1)), *wanted]
    return np.array(np.linalg.lstsq(np.concatenate(left), np.concatenate(right), rcond=None)[0])


@cache
def parts(round_: int, client: int) -> list[list[tuple[Vector, Any]]]:
    """A client's mini-batches, epoch by epoch."""
    every, each = list(federation.batches(round_, client, L)), -(-SIZES[client] // federation.BATCH)
    return [every[epoch * each : (epoch + 1) * each] for epoch in range(L)]


@dataclass
class Hand:
    """A run by hand: what it comes to, and of each round the rates that were planned and those that were used."""

    x: Vector
    planned: list[Vector] = field(default_factory=list)
    used: list[list[list[float]]] = field(default_factory=list)


def by_hand(chosen: Settings, ends: list[RoundEnd]) -> Hand:
    """`ends` only say how many epochs each client did."""
    hand = Hand(federation.start())
    summed, led, literal = chosen.get("phi1") == "sum", "direction" in chosen, "reading" in chosen
    known: dict[str, list[Vector]] = {}

    def clip(rates: Any) -> Any:
        return np.clip(rates, 0.1 * LR, chosen.get("cap", 10.0) * LR)

    def seen(w: Vector, round_: int, client: int, epoch: int) -> Vector:
        full = chosen.get("gradient_batches") == "full"
        return federation.gradient(w, *(federation.clients()[client] if full else parts(round_, client)[epoch][0]))

    def walk(round_: int, client: int, rates: list[float], again: Any = None) -> tuple[Vector, Settings, list[float]]:
        """On own gradients: (where it ends, gradients and ways of its epochs, the rates)."""
        w, said, used = hand.x, {"gradient": [], "way": []}, []
        for epoch, planned in enumerate(rates):
            rate, before = again(w, epoch) if again else planned, w
            said["gradient"].append(seen(w, round_, client, epoch))
            for batch in parts(round_, client)[epoch]:
                w = w - rate * federation.gradient(w, *batch)
            said["way"].append((w - before) / rate)
            used.append(rate)
        return w, said, used

    def along(
        round_: int, client: int, rates: list[float], phi1: Vector, again: Any = None
    ) -> tuple[Vector, Settings, list[float]]:
        """One step of phi1 an epoch: the same, but ways are those that the gradients there would lead."""
        w, said, used = hand.x, {"gradient": [], "way": []}, []
        for epoch, planned in enumerate(rates):
            g, rate = seen(w, round_, client, epoch), again(w, epoch) if again else planned
            said["gradient"].append(g)
            said["way"].append(-len(parts(round_, client)[epoch]) * g)
            w = w - rate * phi1[epoch]
            used.append(rate)
        return w, said, used

    def mean_gradients(points: list[Vector], round_: int, clients: list[int]) -> Vector:
        return np.array([np.mean([seen(w, round_, client, 0) for client in clients], axis=0) for w in points])

    def learn(everybody: list[Settings]) -> None:
        for name in ("gradient", "way"):
            for epoch in range(max(len(one[name]) for one in everybody)):
                mean = np.mean([one[name][epoch] for one in everybody if len(one[name]) > epoch], axis=0)
                known[name] = [*known.get(name, [])[:epoch], mean, *known.get(name, [])[epoch + 1 :]]

    for round_, end in enumerate(ends, 1):
        jobs = list(zip(federation.chosen(round_), end.arrivals.columns["epochs"], strict=True))
        planned, phi1, again = [LR] * L, None, None
        if chosen.get("probe"):
            learn([walk(round_, client, [LR] * done)[1] for client, done in jobs])
        if literal:
            rates, clients = np.full(L, chosen.get("initial_rate", LR)), [client for client, _ in jobs]
            phi1 = mean_gradients([hand.x] * L, round_, clients)
            path = hand.x - (rates[:, None] * phi1).cumsum(0)
            for sweep in range(4):
                phi1 = mean_gradients([hand.x, *path[:-1]], round_, clients) if sweep else phi1
                rates = np.clip(solve(hand.x, phi1, path), 0, 1)
                path = hand.x - (rates[:, None] * phi1).cumsum(0)
            planned = rates.tolist()
        elif known:
            fresh = np.array(known["way" if summed else "gradient"]) * (-1 if summed else 1)
            way = -fresh if led and not chosen.get("probe") else np.array(known["way"])
            phi2 = hand.x + LR * way.cumsum(0)
            planned = [*clip(solve(hand.x, fresh, phi2)), *[LR] * (L - len(fresh))]
            phi1 = np.array([*fresh, *[fresh[-1]] * (L - len(fresh))])
            if chosen.get("closed_loop"):

                def again(w: Vector, epoch: int, f: Any = fresh, p: Any = phi2) -> float:
                    return float(clip(solve(w, f[epoch:], p[epoch:])[0])) if epoch < len(f) else LR

        done = [
            along(round_, client, planned[:epochs], phi1, again)
            if led and phi1 is not None
            else walk(round_, client, planned[:epochs], again)
            for client, epochs in jobs
        ]
        if not literal and not chosen.get("probe"):
            learn([one[1] for one in done])
        hand.x = np.average([one[0] for one in done], axis=0, weights=[SIZES[client] for client, _ in jobs])
        hand.planned.append(np.array(planned))
        hand.used.append([one[2] for one in done])
    return hand


def check(chosen: Settings, executor: str, **more: Any) -> list[RoundEnd]:
    result, ends = federation.train({"name": "fedagg", **chosen}, executor, local={"epochs": L}, **more)
    hand = by_hand(chosen, ends)
    np.testing.assert_allclose(federation.weights(result), hand.x, rtol=0, atol=1e-9)
    for end, planned, used in zip(ends, hand.planned, hand.used, strict=True):
        np.testing.assert_allclose(end.report["planned_rates"], planned, rtol=0, atol=1e-9)
        for told, expected in zip(end.arrivals.columns["learning_rates"], used, strict=True):
            np.testing.assert_allclose(told, expected, rtol=0, atol=1e-9)
    return ends


@pytest.mark.parametrize("chosen", [{"phi1": "sum"}, AGGREGATED, {**AGGREGATED, "phi1": "sum"}], ids=str)
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str, chosen: Settings) -> None:
    check(chosen, executor)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", OPTIONS, ids=str)
@pytest.mark.parametrize("executor", ["serial", "stack 3", "processes, stack 2"])
def test_every_option_by_hand(executor: str, chosen: Settings) -> None:
    """The model is a chain of layers, for which stacks have closed forms."""
    check(chosen, executor, model=nn.Sequential(federation.net()))


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{"phi1": "sum"}, AGGREGATED, {**AGGREGATED, "phi1": "sum"}], ids=str)
def test_native_kernels_come_to_the_same(chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own epochs are finished in one go there; those along phi1 have nothing to finish."""
    native.needed()
    monkeypatch.setitem(EXECUTORS, "native", {"kind": "vectorised", "stack": 3, "native": True})
    runs = [
        federation.train({"name": "fedagg", **chosen}, executor, nn.Sequential(federation.net()), dtype="float32")[0]
        for executor in ("native", "serial")
    ]
    weights = [federation.weights(result) for result in runs]
    np.testing.assert_allclose(weights[0], weights[1], rtol=0, atol=1e-5)
    assert not np.allclose(weights[0], federation.start(), atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [each for each in OPTIONS if "reading" not in each], ids=str)
@pytest.mark.parametrize("rho", [0.5, 0.7])
def test_stragglers_by_hand(rho: float, chosen: Settings) -> None:
    check(chosen, "stack 3", fleet={"rho": rho})


def test_behind_the_epochs_that_somebody_has_done_the_last_phi1_goes_on() -> None:
    """One client a round: the first does one epoch, the second three."""
    settings: Settings = {"per_round": 1, "rounds": 2, "seed": 1, "local": {"epochs": L}, "fleet": {"rho": 0.6}}
    (first, _), (second, ends) = (
        federation.train({"name": "fedagg", **AGGREGATED}, **{**settings, "rounds": rounds}) for rounds in (1, 2)
    )
    assert [end.arrivals.columns["epochs"] for end in ends] == [[1], [3]]
    planned = ends[1].report["planned_rates"]
    assert planned[1:] == [LR, LR]
    phi1 = first.simulation.core.model.state.memory["gradient"][0].numpy()
    expected = federation.weights(first) - sum(planned) * phi1
    np.testing.assert_allclose(federation.weights(second), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("chosen", "name"), [({"phi1": "sum"}, "way"), (AGGREGATED, "gradient"), ({**AGGREGATED, "phi1": "sum"}, "way")]
)
def test_where_units_match_rates_are_s_times_the_base_rate(chosen: Settings, name: str) -> None:
    """S = c M (I + c M)^-1 of what the first round left."""
    first, _ = federation.train({"name": "fedagg", **chosen}, rounds=1, local={"epochs": L})
    phi1 = first.simulation.core.model.state.memory[name].numpy()
    ahead = np.array([3.0, 2.0, 1.0])
    cm = (1 - ALPHA) / ALPHA * np.minimum.outer(ahead, ahead) * (phi1 @ phi1.T)
    rates = cm @ np.linalg.inv(np.eye(L) + cm) @ np.full(L, LR)
    second = federation.train({"name": "fedagg", **chosen}, rounds=2, local={"epochs": L})[1][1].report
    np.testing.assert_allclose(second["unclipped_rates"], rates, rtol=1e-9)
    assert np.linalg.norm(rates) < np.linalg.norm([LR] * L)


def test_a_small_alpha_leads_to_the_base_rate_or_by_a_mismatch_of_units_beyond_it() -> None:
    """With one mini-batch an epoch, there is no mismatch."""

    def mean_rate(batch: int, **more: Any) -> float:
        chosen, local = {"name": "fedagg", "alpha": 1e-5, **more}, {"batch_size": batch, "lr": 0.01}
        return float(np.mean(federation.train(chosen, rounds=2, local=local)[1][1].report["unclipped_rates"]))

    assert mean_rate(1, phi1="sum") == pytest.approx(0.01, rel=0.02)
    assert mean_rate(1, gradient_batches="full") > 0.025
    assert mean_rate(12, gradient_batches="full") == pytest.approx(0.01, rel=0.05)


def test_along_phi1_gradients_are_taken_only_where_epochs_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    grad = BatchOracle.grad

    def counted(self: BatchOracle, w: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        taken.append(len(w))
        return grad(self, w, at)

    monkeypatch.setattr(BatchOracle, "grad", counted)
    federation.train({"name": "fedagg", **AGGREGATED}, rounds=1, local={"epochs": L})
    own = sum(taken)
    assert own == sum(len(epoch) for client in federation.chosen(1) for epoch in parts(1, client))
    taken.clear()
    federation.train({"name": "fedagg", **AGGREGATED}, rounds=2, local={"epochs": L})
    assert sum(taken) - own == federation.PER_ROUND * L


@pytest.mark.parametrize(
    ("chosen", "beside"),
    [
        ({"phi1": "sum"}, [[L * D, L]] * 2),
        ({"phi1": "sum", "probe": True}, [[L * D, 2 * L]] * 2),
        ({"phi1": "sum", "closed_loop": True}, [[L * D, L], [L * D, L + L * D + (L + 1) * D + L]]),
        (AGGREGATED, [[L * D, L], [L * D, L + L * D]]),
        ({**AGGREGATED, "phi1": "sum"}, [[L * D, L], [L * D, L + L * D]]),
        ({**AGGREGATED, "closed_loop": True}, [[L * D, L], [L * D, L + L * D + (L + 1) * D + L]]),
        ({**AGGREGATED, "probe": True}, [[2 * L * D, 2 * L + L * D]] * 2),
        ({**AGGREGATED, "phi1": "sum", "probe": True}, [[L * D, 2 * L + L * D]] * 2),
        ({**AGGREGATED, **LITERAL, "sweeps": 1}, [[2 * L * D, 2 * L * D + L + L * D]] * 2),
    ],
    ids=str,
)
def test_numbers_that_travel_beside_the_weights(chosen: Settings, beside: list[list[int]]) -> None:
    """[rounds, (up, down)]: what the server knows anyway stays at home; phi1 goes down where clients follow it."""
    _, ends = federation.train({"name": "fedagg", **chosen}, rounds=2, local={"epochs": L})
    columns = [[end.arrivals.columns[key] for key in ("bytes_up", "bytes_down")] for end in ends]
    assert columns == [[[(number + D) * BYTES] * federation.PER_ROUND for number in pair] for pair in beside]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"reading": "literal", "phi1": "sum"},
            r"algorithm\.phi1=sum .*\.reading=literal; remove it or set .*\.reading=practical$",
        ),
        ({"reading": "literal", "cap": None}, r"algorithm\.cap=null .*reading=literal; .* set .*reading=practical$"),
        ({"reading": "literal", "floor": 0.5}, r"algorithm\.floor=0\.5 .*reading=literal; .* set .*reading=practical$"),
        ({"sweeps": 3}, r"algorithm\.sweeps=3 .*reading=practical; remove it or set .*reading=literal$"),
        ({"tolerance": 0.1}, r"algorithm\.tolerance=0\.1 .*reading=practical; remove it or set .*reading=literal$"),
        ({"initial_rate": 0.1}, r"algorithm\.initial_rate=0\.1 .*reading=practical; .* set .*reading=literal$"),
        ({"reading": "literal", "initial_rate": 1.0}, r"(?=.*1\.0)algorithm\.initial_rate\b.* less than 1"),
        ({"reading": "literal", "initial_rate": 0.0}, r"(?=.*0\.0)algorithm\.initial_rate\b.* greater than 0"),
        ({"phi1": "sum", "gradient_batches": "full"}, r"gradient_batches=full .*\.phi1=sum.*; set .*=1 or phi1=first"),
        ({**AGGREGATED, "phi1": "sum", "probe": True, "gradient_batches": "full"}, r"gradient_batches=full"),
        ({"direction": "mean"}, r"(?=.*mean)algorithm\.direction.*'own' or 'aggregated'"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(settings: Settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment(algorithm={"name": "fedagg", **settings})


def test_momentum_is_refused_where_clients_move_along_phi1() -> None:
    federation.train("fedagg", rounds=1, local={"momentum": 0.5})
    with pytest.raises(InputError, match=r"local\.momentum=0\.5 .*direction=aggregated.*; set local\.momentum=0$"):
        federation.train({"name": "fedagg", **AGGREGATED}, rounds=1, local={"momentum": 0.5})


@pytest.mark.slow
def test_the_initial_rate_does_not_decay_and_the_base_rate_does() -> None:
    """In the second round, the first sweep starts from as much as before, or from half of it."""
    local = {"epochs": L, "lr_decay": 0.5}
    largest = [
        federation.train({"name": "fedagg", **LITERAL, **more}, rounds=2, local=local)[1][1].report["sweeps"][0][2]
        for more in ({"initial_rate": LR}, {})
    ]
    assert largest[0] > 1.5 * largest[1]
