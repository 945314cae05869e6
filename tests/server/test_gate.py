"""The gate in front of every aggregation: each reason to refuse an upload alone, and what becomes of the others."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import FederatedData, InputError, run
from fedkeel.errors import DivergenceError, FedkeelError
from fedkeel.methods.job import Updates
from fedkeel.params import FlatModel, Part
from fedkeel.server import core
from fedkeel.server.gate import Gate, Refusal
from fedkeel.server.settings import GateSettings
from fedkeel.wire.orders import Order, Trained
from tests.helpers import federation
from tests.helpers.clock import experiment, watch
from tests.helpers.federation import LR, SIZES, N, Vector
from tests.helpers.folders import rows

LAYOUT = FlatModel(federation.net(4)).layout
START = torch.linspace(-1, 1, LAYOUT.size, dtype=torch.float64)


def gate(uploads: Part = "all", **settings: Any) -> Gate:
    return Gate(GateSettings(**settings), LAYOUT, uploads, N)


def orders(count: int = 3) -> list[Order]:
    lr = torch.full((2,), 0.25, dtype=torch.float64)
    return [Order(each + 1, each, 4, 2, START, torch.zeros(0), lr, {}, {}) for each in range(count)]


def sent(job: int, version: int) -> Order:
    return replace(orders(1)[0], job=job, version=version)


def trained(count: int = 3, **columns: Tensor) -> Trained:
    """Each client moved every weight a little."""
    moved = START + 0.01 * torch.arange(1, count + 1, dtype=torch.float64)[:, None]
    common = {
        "w": moved,
        "buffers": torch.zeros(count, 2, dtype=torch.float64),
        "lr": torch.full((count, 2), 0.25, dtype=torch.float64),
        "loss": torch.ones(count, dtype=torch.float64),
        "steps": torch.ones(count, dtype=torch.int64),
        "finite": torch.ones(count, dtype=torch.bool),
        "message/said": torch.ones(count, 4, dtype=torch.float64),
        "message/counted": torch.ones(count, 1, dtype=torch.int64),
    }
    return Trained({**common, **columns})


def spoiled(which: str, value: float) -> Trained:
    """One number of the second client's is spoiled."""
    column = trained().columns[which].clone()
    column[1, -1] = value
    return trained(**{which: column})


# What an upload claims to be.


def test_what_the_server_waits_for_is_let_in_once() -> None:
    door = gate()
    assert door.claim(client=2, job=7, version=3, expected=sent(7, 3), newest=3) is None
    again = door.claim(client=2, job=7, version=3, expected=None, newest=4)
    assert again == Refusal("duplicate", "job 7 has arrived before")
    assert door.claim(client=2, job=7, version=3, expected=sent(9, 4), newest=4) == again
    assert door.claim(client=2, job=9, version=4, expected=sent(9, 4), newest=4) is None


def test_a_job_that_was_given_up() -> None:
    door = gate()
    late = door.claim(client=2, job=7, version=3, expected=None, newest=3)
    assert late == Refusal("old job", "job 7 is over, none is expected")
    other = door.claim(client=2, job=7, version=3, expected=sent(9, 3), newest=3)
    assert other == Refusal("old job", "job 7 is over, job 9 is expected")
    assert door.claim(client=2, job=9, version=3, expected=sent(9, 3), newest=3) is None


def test_jobs_are_told_apart_by_their_clients() -> None:
    door = gate()
    assert door.claim(client=2, job=7, version=0, expected=sent(7, 0), newest=0) is None
    refusal = door.claim(client=3, job=7, version=0, expected=None, newest=0)
    assert refusal is not None
    assert refusal.reason == "old job"


def test_another_version_than_the_job_began_with() -> None:
    door = gate()
    refusal = door.claim(client=0, job=7, version=2, expected=sent(7, 3), newest=4)
    assert refusal == Refusal("wrong version", "it claims version 2, the job began with 3")
    assert door.claim(client=0, job=7, version=3, expected=sent(7, 3), newest=4) is None


@pytest.mark.parametrize("expected", [7, 8, None])
def test_a_version_that_does_not_exist_yet(expected: int | None) -> None:
    door = gate()
    refusal = door.claim(client=0, job=7, version=5, expected=None if expected is None else sent(expected, 4), newest=4)
    assert refusal == Refusal("from the future", "it claims version 5, the newest is 4")
    if expected == 7:
        assert door.claim(client=0, job=7, version=4, expected=sent(7, 4), newest=4) is None  # it was not let in before


# What is in it.


def test_what_is_right_is_let_in() -> None:
    door = gate(max_norm=1e3, min_norm=0.0)
    assert door.judge(orders(), trained()) == [None] * 3
    assert door.judge(orders(), trained(), altered=True) == [None] * 3


@pytest.mark.parametrize(
    ("w", "expected"),
    [
        (trained().w[:, 1:], Refusal("wrong shape", f"weights must be [{LAYOUT.size}]; got [{LAYOUT.size - 1}]")),
        (trained().w[:, :, None], Refusal("wrong shape", f"weights must be [{LAYOUT.size}]; got [{LAYOUT.size}, 1]")),
        (trained().w[:, :0], Refusal("wrong shape", f"weights must be [{LAYOUT.size}]; got [0]")),
        (trained().w.float(), Refusal("wrong dtype", "weights must be torch.float64; got torch.float32")),
        (trained().w.long(), Refusal("wrong dtype", "weights must be torch.float64; got torch.int64")),
    ],
)
def test_vectors_of_another_kind(w: Tensor, expected: Refusal) -> None:
    assert gate(max_norm=1.0).judge(orders(), trained(w=w), altered=True) == [expected] * 3


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("which", ["message/said", "buffers", "w"])
def test_numbers_that_are_infinite_or_none(which: str, value: float) -> None:
    first, second, third = gate().judge(orders(), spoiled(which, value), altered=which == "w")
    assert (first, third) == (None, None)
    assert second is not None
    assert second.reason == "not finite"


def test_a_norm_beyond_the_bound_is_not_finite_first() -> None:
    _, second, _ = gate(max_norm=10.0).judge(orders(), spoiled("w", inf), altered=True)
    assert second is not None
    assert second.reason == "not finite"


def norms(mask: Vector | None = None) -> list[float]:
    moved = (trained().w - START).numpy()
    return [float(np.sqrt((row[mask] ** 2).sum() if mask is not None else (row**2).sum())) for row in moved]


def test_norms_are_those_of_numpy() -> None:
    door, update = gate(), torch.randn(LAYOUT.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float(door.norm(update)) == pytest.approx(float(np.linalg.norm(update.numpy())), rel=1e-14)
    big = torch.full((LAYOUT.size,), 1e30)  # whose square float32 cannot hold
    assert float(door.norm(big)) == pytest.approx(1e30 * LAYOUT.size**0.5, rel=1e-6)


def test_norms_out_of_bounds() -> None:
    small, middle, large = norms()
    bound, floor = (middle + large) / 2, (small + middle) / 2
    first, second, third = gate(max_norm=bound, min_norm=floor).judge(orders(), trained())
    assert first == Refusal("norm", f"it must be at least {floor:g}; got {small:g}")
    assert second is None
    assert third == Refusal("norm", f"it must be at most {bound:g}; got {large:g}")
    assert gate(max_norm=large * (1 + 1e-12), min_norm=small * (1 - 1e-12)).judge(orders(), trained()) == [None] * 3


def test_only_what_travels_is_measured() -> None:
    body = LAYOUT.mask("body").numpy()
    assert 0 < body.sum() < LAYOUT.size
    w = trained().w.clone()
    w[1, torch.from_numpy(~body)] += 1e6  # the head stays where it is
    bound = norms(body)[2] * 1.001
    assert gate("body", max_norm=bound).judge(orders(), trained(w=w)) == [None] * 3
    refused = gate(max_norm=bound).judge(orders(), trained(w=w))
    assert [each is None for each in refused] == [True, False, False]
    w[1, 0] += 1e6
    assert [each is None for each in gate("body", max_norm=bound).judge(orders(), trained(w=w))] == [True, False, True]


DIVERGED: list[dict[str, Tensor]] = [
    {"finite": torch.tensor([True, False, True])},
    {"loss": torch.tensor([1.0, nan, 1.0], dtype=torch.float64)},
    {"loss": torch.tensor([1.0, inf, 1.0], dtype=torch.float64)},
    {"loss": torch.tensor([1.0, 1.0001e4, 1.0], dtype=torch.float64)},
]


@pytest.mark.parametrize("columns", DIVERGED)
def test_training_that_diverged_stops_the_run(columns: dict[str, Tensor]) -> None:
    with pytest.raises(DivergenceError, match=r"in round 4 on client 1: its loss is .* at learning rate 0\.25"):
        gate(max_loss=1e4).judge(orders(), trained(**columns))


@pytest.mark.parametrize("columns", DIVERGED)
def test_training_that_diverged_is_refused_if_that_is_asked_for(columns: dict[str, Tensor]) -> None:
    first, second, third = gate(diverged="refuse", max_loss=1e4).judge(orders(), trained(**columns))
    assert (first, third) == (None, None)
    assert second is not None
    assert second.reason == "diverged"
    assert second.detail.endswith("at learning rate 0.25")


def test_a_loss_up_to_the_bound_is_no_divergence() -> None:
    loss = torch.tensor([1.0, 5.0, 1.0], dtype=torch.float64)
    assert gate(max_loss=5.0).judge(orders(), trained(loss=loss)) == [None] * 3
    with pytest.raises(DivergenceError):
        gate(max_loss=4.999).judge(orders(), trained(loss=loss))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gate": {"max_norm": 1.0, "min_norm": 2.0}}, r"gate\.min_norm must be at most gate\.max_norm=1; got 2"),
        ({"gate": {"max_norm": 0.0}}, r"gate\.max_norm"),
        ({"gate": {"diverged": "ignore"}}, r"gate\.diverged"),
        (
            {"faults": {"corrupt": 0.1, "corruptions": ["huge"]}},
            r"faults\.corruptions: 'huge' needs gate\.max_norm, .*; set gate\.max_norm",
        ),
        ({"faults": {"hang": 0.6, "leave": 0.6}}, r"faults: hang, .* corrupt must add up to at most 1, .*; got 1\.2$"),
        ({"faults": {"corrupt": 0.1, "corruptions": []}}, r"faults\.corruptions"),
        ({"faults": {"corrupt": 0.1, "corruptions": ["odd"]}}, r"faults\.corruptions"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        experiment("fedavg", **settings)


@pytest.mark.parametrize("bound", ["max_norm", "min_norm"])
def test_bounds_on_weights_that_do_not_travel(bound: str) -> None:
    nothing = [name for name in ("fedgh", "fedbabu") if experiment(name).algorithm.rules()[0].uploads == "none"]
    for name in nothing:
        with pytest.raises(InputError, match=f"gate.{bound}"):
            experiment(name, gate={bound: 1.0})


# In a run.


def local(w: Vector, round: int, client: int) -> Vector:
    for batch in federation.batches(round, client):
        w = w - LR * federation.gradient(w, *batch)
    return w


def averaged(rounds: int, bound: float, lowest: float = 0.0) -> tuple[Vector, list[list[int]]]:
    """FedAvg by hand, without those whose updates are too large or too small; (the model, who was refused)."""
    w, refused = federation.start(), []
    for round in range(1, rounds + 1):
        moved = {client: local(w, round, client) for client in federation.chosen(round)}
        size = {client: float(np.linalg.norm(own - w)) for client, own in moved.items()}
        good = [client for client in moved if lowest <= size[client] <= bound]
        refused.append([client for client in moved if client not in good])
        total = sum(SIZES[client] for client in good)
        w = sum((SIZES[client] * moved[client] for client in good), np.zeros_like(w)) / total if good else w
    return w, refused


@pytest.mark.parametrize("executor", ["serial", "stack 3"])
@pytest.mark.parametrize(("bound", "lowest"), [(0.25, 0.0), (1.0, 0.1), (0.15, 0.05)])
def test_a_refused_update_leaves_the_mean_of_the_others(bound: float, lowest: float, executor: str) -> None:
    expected, refused = averaged(4, bound, lowest)
    assert any(refused)
    assert not all(len(each) == 3 for each in refused)
    result, ends = federation.train("fedavg", executor, gate={"max_norm": bound, "min_norm": lowest})
    np.testing.assert_allclose(federation.weights(result), expected, rtol=0, atol=1e-12)
    assert [[row.client for row in end.refused] for end in ends] == refused
    assert {row.reason for end in ends for row in end.refused} == {"norm"}
    for end, without in zip(ends, refused, strict=True):
        assert sorted(a.client for a in end.arrivals) == sorted({*federation.chosen(end.round)} - {*without})
    assert result.summary["uploads_turned_away"] == {"norm": sum(map(len, refused))}
    assert result.summary["updates"] == 12 - sum(map(len, refused))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "executor"),
    [
        ("fedagg", "serial"),
        ("fedagg", "stack 3"),
        ("fedagg", "processes, stack 2"),
        ("scaffold", "stack 3"),
        ("fednova", "stack 3"),
        ("fedlws", "stack 3"),
    ],
)
def test_sums_are_those_of_the_others(name: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a run in which the same client came too late: the slowest."""
    settings: dict[str, Any] = {"per_round": N, "rounds": 1, "fleet": {"seconds_per_sample": 0.5}}
    plain, ends = federation.train(name, executor, **settings)
    late, missing = federation.train(name, executor, **settings, schedule={"deadline_seconds": slowest(ends, 3)})
    assert [row.client for row in missing[0].unfinished] == [3]
    judge = Gate.judge

    def refuses(self: Gate, orders: list[Order], trained: Trained, altered: bool = False) -> list[Refusal | None]:
        good = judge(self, orders, trained, altered)
        return [Refusal("norm", "") if o.client == 3 else each for o, each in zip(orders, good, strict=True)]

    monkeypatch.setattr(Gate, "judge", refuses)
    refusing, ends = federation.train(name, executor, **settings)
    assert [row.client for row in ends[0].refused] == [3]
    np.testing.assert_allclose(federation.weights(refusing), federation.weights(late), rtol=0, atol=1e-13)
    assert not np.allclose(federation.weights(refusing), federation.weights(plain), atol=1e-6)


def slowest(ends: list[Any], client: int) -> float:
    """A moment between the last but one arrival and that of the slowest."""
    times = sorted((a.arrived, a.client) for a in ends[0].arrivals)
    assert times[-1][1] == client
    return float(times[-1][0] + times[-2][0]) / 2


def largest(name: str, **settings: Any) -> dict[int, float]:
    """How far each client moves in the first round, as the server sees it."""
    seen: dict[int, float] = {}
    judge = Gate.judge

    def watched(self: Gate, orders: list[Order], trained: Trained, altered: bool = False) -> Any:
        seen.update({o.client: float(self.norm(trained.w[row] - o.start)) for row, o in enumerate(orders)})
        return judge(self, orders, trained, altered)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "judge", watched)
        federation.train(name, **settings)
    return seen


def test_fedbabu_is_measured_without_its_head() -> None:
    moved = largest("fedbabu", model=federation.net(4), rounds=1)
    bound = float(np.median([*moved.values()])) * 1.0001
    _, (end,) = federation.train("fedbabu", model=federation.net(4), rounds=1, gate={"max_norm": bound})
    assert [row.client for row in end.refused] == [c for c in sorted(moved) if moved[c] > bound]
    assert len(end.refused) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedagg", "fedadam", "fedssmu", "fedbuff", "fedasync"])
def test_a_run_of_which_everything_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STARVED", 30)
    described = experiment(name, gate={"max_norm": 1e-9}, rounds=3, executor=federation.EXECUTORS["serial"])
    if described.pace in ("periodic", "concurrency"):
        with pytest.raises(FedkeelError, match=r"starves.*or the gate refuses their uploads \(see refused\.jsonl\)"):
            run(described, tmp_path / "starved", data=federation.data(), model=federation.net())
        assert len(rows(tmp_path / "starved", "refused")) > 30
        described = described.replace(limit_seconds=45)
    result = run(described, tmp_path / "a", data=federation.data(), model=federation.net())
    assert np.array_equal(federation.weights(result), federation.start())
    history, refused = rows(tmp_path / "a", "history"), rows(tmp_path / "a", "refused")
    assert {row["version"] for row in history} == {row["updates"] for row in history} == {0}
    assert all(row.get("train_loss") is None for row in history)
    assert not rows(tmp_path / "a", "clients")
    assert {row["reason"] for row in refused} == {"norm"}
    assert result.summary["uploads_turned_away"] == {"norm": len(refused)}
    if described.pace in ("barrier", "stream"):
        assert [row["round"] for row in refused] == [1] * 3 + [2] * 3 + [3] * 3
        told = [(row["arrived"], row["lost"], row["refused"]) for row in rows(tmp_path / "a", "rounds")]
        assert told == [(0, 0, 3)] * 3


@pytest.mark.parametrize("name", ["fedavg", "fedssmu"])
def test_rounds_that_are_all_refused_starve_the_server_in_the_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STARVED", 20)
    with pytest.raises(FedkeelError, match="starves: 20 rounds in a row brought no update"):
        watch(experiment(name, gate={"max_norm": 1e-9}, rounds=30, evaluate_every=100))


def wild(client: int) -> FederatedData:
    """One client's samples are so large that its training comes to nothing."""
    clients = federation.clients()
    clients[client] = clients[client][0] * 1e37, clients[client][1]
    return FederatedData.from_clients(clients, test=federation.clients()[3])


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_divergence_of_one_client(executor: str) -> None:
    settings = {"dtype": "float32", "executor": federation.EXECUTORS[executor], "per_round": N, "rounds": 2}
    described = experiment("fedavg", **settings)
    with pytest.raises(DivergenceError, match=r"round 1 on client 2: its loss is .* at learning rate 0\.1") as error:
        run(described, data=wild(2), model=federation.net())
    assert error.value.exit_code == 3
    result = run(described.replace(gate={"diverged": "refuse"}), data=wild(2), model=federation.net())
    w = federation.start()
    others = [client for client in range(N) if client != 2]
    for round in (1, 2):
        w = sum((SIZES[c] * local(w, round, c) for c in others), np.zeros_like(w)) / sum(SIZES[c] for c in others)
    np.testing.assert_allclose(federation.weights(result), w, rtol=0, atol=1e-6)
    assert result.summary["uploads_turned_away"] == {"diverged": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "moon"])
def test_a_client_whose_training_came_to_nothing_has_what_it_had(name: str) -> None:
    settings = {"executor": federation.EXECUTORS["serial"], "gate": {"diverged": "refuse"}, "dtype": "float32"}
    described = experiment(name, per_round=N, rounds=2, **settings)
    result = run(described, data=wild(2), model=federation.net(4))
    kept = result.simulation.world.desk.kept
    assert 2 not in kept
    assert all(bool(t.isfinite().all()) for each in kept.values() for t in each.values())


def test_a_test_loss_that_explodes_stops_the_run(tmp_path: Path) -> None:
    class Moody(nn.Module):
        """Its loss is small in training, and large in tests."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = federation.net()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out if self.training else out * 1e7

    described = experiment(
        "fedavg", executor=federation.EXECUTORS["serial"], checkpoint={"rounds": 1}, evaluate_every=3
    )
    words = r"round 3: the test loss is .*; the highest training loss was .*, of client \d at learning rate 0\.1"
    with pytest.raises(DivergenceError, match=words) as error:
        run(described, tmp_path / "a", data=federation.data(), model=Moody())
    assert str(error.value).endswith(f"the last checkpoint is {tmp_path}/a/checkpoint/round-2")


def test_what_a_rule_makes_of_good_updates_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = experiment("fedavg").algorithm.rules()[1]
    aggregate = type(rule).aggregate

    def spoilt(self: Any, state: Any, updates: Updates) -> Any:
        after, weights = aggregate(self, state, updates)
        after.w[0] = nan  # a new vector, made above
        return after, weights

    monkeypatch.setattr(type(rule), "aggregate", spoilt)
    with pytest.raises(DivergenceError, match="round 1: the global model holds NaN or infinite numbers"):
        federation.train("fedavg", rounds=1)
