"""Sampling of a user's own: what a function is given, and what it may return."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import Experiment, InputError, run, streams
from fedkeel.server.sampling import draw
from tests.helpers import federation
from tests.helpers.federation import ROUNDS, SEED, SIZES, N
from tests.helpers.folders import SETTLED, faulty, resumed, same, stopped

MODULE = """
import numpy as np
seen = []

def largest(sizes, count, free, rng):
    seen.append((sizes.tolist(), count, free.tolist(), rng.integers(1000)))
    return np.argsort(-np.where(free, sizes, 0), kind="stable")[: min(count, free.sum())]
def shuffled(sizes, count, free, rng):
    return rng.permutation(np.flatnonzero(free))[:count].tolist()
def often(sizes, count, free, rng):
    return [3, 1], [1, 2]
def spoils(sizes, count, free, rng):
    sizes[:], free[:] = 0, False
    return [3]
def none(sizes, count, free, rng): return []

def many(sizes, count, free, rng): return range(count + 1)
def twice(sizes, count, free, rng): return [1, 1]
def outside(sizes, count, free, rng): return [len(sizes)]
def negative(sizes, count, free, rng): return [-1]
def busy(sizes, count, free, rng): return [2]
def empty(sizes, count, free, rng): return [5]
def floats(sizes, count, free, rng): return [0.5]
def mask(sizes, count, free, rng): return free
def nothing(sizes, count, free, rng): return None
def zero_times(sizes, count, free, rng): return [1, 3], [1, 0]
def fewer(sizes, count, free, rng): return np.array([1, 3]), np.array([1])
def fails(sizes, count, free, rng): raise ValueError("no draw today")
def three(sizes, count, free): ...
def five(sizes, count, free, rng, more): ...
number = 3
"""
SAMPLES = np.array([4, 9, 2, 7, 5, 0])
FREE = np.array([True, True, False, True, True, True])


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_draws.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_draws", raising=False)


def drawn(name: str, count: int = 2, free: Any = FREE, **how: Any) -> tuple[list[int], list[int] | None]:
    clients, draws = draw(3, 8, f"own_draws:{name}", SAMPLES, count, free, **how)
    return clients.tolist(), None if draws is None else draws.tolist()


def test_the_function_is_told_who_can_be_drawn() -> None:
    assert drawn("largest", 3) == ([1, 3, 4], None)
    assert drawn("largest", 20, None) == ([0, 1, 2, 3, 4], None)
    number = streams.generator(3, "sampling", 8).integers(1000)
    assert sys.modules["own_draws"].seen == [
        (SAMPLES.tolist(), 3, [True, True, False, True, True, False], number),
        (SAMPLES.tolist(), 20, [True, True, True, True, True, False], number),
    ]


def test_clients_come_in_ascending_order_with_their_draws() -> None:
    assert drawn("often") == ([1, 3], [2, 1])


def test_nobody_is_asked_for_nobody() -> None:
    assert drawn("fails", 0) == ([], None)
    assert drawn("fails", 2, np.zeros(6, dtype=bool)) == ([], None)


def test_what_it_is_given_is_its_own() -> None:
    before = SAMPLES.copy(), FREE.copy()
    assert drawn("spoils") == ([3], None)
    assert (before[0] == SAMPLES).all()
    assert (before[1] == FREE).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("many", "sampling: own_draws:many must draw at most 2 clients; got 3"),
        ("twice", "drew client 1 twice; return each client once"),
        ("outside", "must draw clients from 0 to 5; got 6"),
        ("negative", "must draw clients from 0 to 5; got -1"),
        ("busy", "drew client 2, which is at work or off; draw free clients only"),
        ("empty", "drew client 5, which has no data; draw free clients only"),
        ("floats", "must return client numbers; got [0.5]"),
        ("mask", "must return client numbers; got array([ True, "),
        ("nothing", "must return client numbers; got None"),
        ("none", "drew no client; return at least one of the free clients"),
        ("zero_times", "must return 1 or more draws for each client; got [1, 0]"),
        ("fewer", "must return 1 or more draws for each client; got [1]"),
        ("fails", "sampling: own_draws:fails failed (own_draws.py, line 28, in fails: ValueError: no draw today)"),
    ],
)
def test_what_is_no_draw_is_told(name: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        drawn(name)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_draws:nix", "sampling: 'own_draws:nix' cannot be imported"),
        ("nowhere:x", "No module named 'nowhere'"),
        ("own_draws:number", "own_draws:number must be a function number(sizes, count, free, rng); got 3"),
        ("own_draws:three", "a function three(sizes, count, free, rng); got three(sizes, count, free) (too many posi"),
        ("own_draws:five", "must be a function five(sizes, count, free, rng); got five(sizes, count, free, rng, more)"),
        ("own_draws:five", "(missing a required argument: 'more')"),
        ("unifrom", "sampling must be one of uniform, scheme1 or module:function; got 'unifrom'"),
    ],
)
def test_bad_descriptions_are_told_before_anything_else(name: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        Experiment(sampling=name)
    assert said in str(refused.value)


@pytest.mark.parametrize("schedule", [{"over_select": 0.5}, {"pace": "periodic"}])
def test_draws_count_only_where_a_round_waits_for_all(schedule: dict[str, Any]) -> None:
    algorithm = "fedasync" if "pace" in schedule else "fedavg"
    described = Experiment(algorithm=algorithm, sampling="own_draws:often", schedule=schedule, executor="serial")
    with pytest.raises(InputError, match="own_draws:often returned draws, which count only in rounds with a barrier"):
        run(described, data=federation.data(), model=federation.net())


def test_those_who_were_drawn_train_and_count_by_their_samples() -> None:
    _, ends = federation.train("fedavg", sampling="own_draws:largest", per_round=2)
    one, two = sorted(range(N), key=lambda client: -SIZES[client])[:2]
    assert len(ends) == ROUNDS
    for end in ends:
        weights = {arrival.client: arrival.weight for arrival in end.arrivals}
        assert weights == pytest.approx({c: SIZES[c] / (SIZES[one] + SIZES[two]) for c in (one, two)})


def test_draws_are_weights() -> None:
    _, ends = federation.train("fedavg", sampling="own_draws:often", per_round=2)
    for end in ends:
        assert {a.client: a.weight for a in end.arrivals} == pytest.approx({1: 2 / 3, 3: 1 / 3})


def test_a_round_is_drawn_from_its_own_stream() -> None:
    _, ends = federation.train("fedavg", sampling="own_draws:shuffled", per_round=3)
    for end in ends:
        expected = streams.generator(SEED, "sampling", end.round).permutation(N)[:3]
        assert [a.client for a in end.arrivals] == sorted(expected.tolist())


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "executor"), [("fedavg", "processes"), ("fedbuff", "stack")])
def test_stopped_and_resumed_bit_for_bit(algorithm: str, executor: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": federation.data(), "model": federation.net(4)}
    described = faulty(algorithm, executor, sampling="own_draws:shuffled")
    assert described.executor.kind == SETTLED[executor]["kind"]
    run(described, tmp_path / "whole", **given)
    stopped(described, tmp_path / "stopped", 2, **given)
    resumed(tmp_path / "stopped", **given)
    same(tmp_path / "whole", tmp_path / "stopped")
    assert "sampling: own_draws:shuffled\n" in (tmp_path / "whole" / "experiment.yaml").read_text()
