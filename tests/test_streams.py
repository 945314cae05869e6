from __future__ import annotations

import subprocess
import sys
from itertools import permutations as all_orders

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedkeel import streams

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_bits_are_those_of_the_published_splitmix64():
    """The first outputs for seed 1234567 of Vigna's reference implementation."""
    assert streams.bits(np.array([1234567], dtype=np.uint64), 5).tolist() == [
        [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ]
    ]


@pytest.mark.parametrize("places", [2**24 - 1, 7])
def test_permutations_are_those_of_a_stable_sort(places, monkeypatch):
    """Rows of unequal length, in each of which what is behind its end stays where it is; also where places are many."""
    monkeypatch.setattr(streams, "_PLACES", np.uint64(places))
    counts = np.array([1, 2, 9, 7, 600, 0])
    stream = streams.keys(3, "batches", np.arange(len(counts)))
    found = streams.permutations(stream, counts)
    for row, count, key in zip(found, counts, stream, strict=True):
        drawn = streams.bits(np.array(key), 600)[:count]
        assert row.tolist() == [*np.argsort(drawn, kind="stable"), *range(count, 600)]
        assert streams.permutations(np.array(key), int(count)).tolist() == row[:count].tolist()


@pytest.mark.slow
def test_another_process_draws_the_same():
    """Whatever its hash seed: nothing depends on the order of a set or on hash()."""
    code = (
        "from fedkeel import streams as s;"
        "print(s.key(7, 'batches', 3, -1), s.permutations(s.keys(7, 'batches', 3), 9).tolist(),"
        "s.generator(7, 'batches').random())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    stream = streams.keys(7, "batches", 3)
    here = (
        f"{streams.key(7, 'batches', 3, -1)} {streams.permutations(stream, 9).tolist()} "
        f"{streams.generator(7, 'batches').random()}"
    )
    assert told == {here}


@given(st.integers(), st.text(max_size=9), INT64, st.lists(INT64, min_size=1, max_size=5))
def test_an_array_of_clients_draws_what_each_draws_alone(seed, purpose, round_, clients):
    together = streams.keys(seed, purpose, round_, np.array(clients))
    alone = [streams.key(seed, purpose, round_, client) for client in clients]
    assert together.tolist() == alone
    for row, client in zip(streams.bits(together, 7), clients, strict=True):
        assert np.array_equal(row, streams.bits(streams.keys(seed, purpose, round_, client), 7)[0])
    for row, client in zip(streams.permutations(together, 7), clients, strict=True):
        assert np.array_equal(row, streams.permutations(streams.keys(seed, purpose, round_, client), 7)[0])


def test_a_longer_draw_begins_like_a_shorter_one():
    stream = streams.keys(0, "x", np.arange(5))
    assert np.array_equal(streams.bits(stream, 9)[:, :4], streams.bits(stream, 4))


def test_wheres_are_broadcast_against_each_other():
    grid = streams.keys(0, "x", np.arange(3)[:, None], np.arange(4))
    assert grid.shape == (3, 4)
    assert grid[2, 1] == streams.key(0, "x", 2, 1)


def test_everything_that_names_a_stream_matters():
    far = [-(2**63), -(2**40), -1, 0, 1, 2**40, 2**63 - 1]
    found = [
        streams.key(seed, purpose, *where)
        for seed in (-1, 0, 1, 2**64, 10**30)
        for purpose in ("", "a", "b", "a/b", "1/a")
        for where in [(), (0, 0), (0, 1), (1, 0), (0, 0, 0), *((n,) for n in far)]
    ]
    assert len(set(found)) == len(found)


@pytest.mark.slow
def test_clients_and_rounds_do_not_collide():
    grid = streams.keys(0, "x", np.arange(-500, 500)[:, None], np.arange(500))
    assert len(np.unique(grid)) == grid.size


@given(INT64, st.integers(0, 40))
def test_permutations_hold_every_number_once(where, count):
    rows = streams.permutations(streams.keys(0, "x", np.array([where, 0, 1])), count)
    assert rows.shape == (3, count)
    assert (np.sort(rows, axis=-1) == np.arange(count)).all()


@pytest.mark.slow
def test_permutations_are_uniform():
    rows = streams.permutations(streams.keys(0, "x", np.arange(24_000)), 4)
    found = [tuple(row) for row in rows.tolist()]
    assert chisquare([found.count(order) for order in all_orders(range(4))]).pvalue > 1e-3


@pytest.mark.parametrize("shift", [0, 28, 56], ids=["low bits", "middle bits", "high bits"])
def test_bits_of_neighbouring_keys_are_uniform_and_independent(shift):
    draws = streams.bits(streams.keys(0, "x", np.arange(40_000)), 2) >> np.uint64(shift) & np.uint64(15)
    along_keys = draws[:-1, 0] * np.uint64(16) + draws[1:, 0]
    along_draws = draws[:, 0] * np.uint64(16) + draws[:, 1]
    for pairs in (along_keys, along_draws):
        assert chisquare(np.bincount(pairs.astype(np.int64), minlength=256)).pvalue > 1e-3


def test_keys_of_neighbouring_seeds_are_uniform():
    keys = np.array([streams.key(seed, "x", 0) for seed in range(5000)], dtype=np.uint64)
    assert chisquare(np.bincount((keys >> np.uint64(60)).astype(np.int64), minlength=16)).pvalue > 1e-3


def test_generators_are_named_too():
    draws = [
        streams.generator(seed, purpose, *where).random()
        for seed, purpose, where in [(0, "x", ()), (0, "x", ()), (1, "x", ()), (0, "y", ()), (0, "x", (0,))]
    ]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 4


def test_where_is_an_integer_of_64_bits():
    with pytest.raises(OverflowError):
        streams.keys(0, "x", 2**63)


def test_uniform_numbers_are_the_upper_53_bits() -> None:
    keys = streams.keys(3, "test", np.arange(500))
    drawn = streams.uniform(keys, 4)
    assert drawn.tolist() == [[int(each) // 2**11 / 2**53 for each in row] for row in streams.bits(keys, 4)]
    assert 0 <= drawn.min() < 0.01
    assert 0.99 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 3.5 / np.sqrt(12 * drawn.size)
