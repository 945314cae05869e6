"""Work that is counted in mini-batches: which samples they have, and how many samples that makes."""

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel import Experiment, InputError, streams
from fedkeel.data.federated import FederatedData
from fedkeel.local.batches import Batch, Batches
from fedkeel.local.settings import LocalSettings
from fedkeel.local.work import epochs_in, seen, steps, units_an_epoch, whole_jobs
from tests.helpers.numbered import numbered, walk

SEED = 7
CASES = st.lists(st.tuples(st.integers(1, 17), st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=5)
"""(Samples, mini-batches, wave) of each client of a stack."""
SIZE = st.one_of(st.integers(1, 8), st.just("full"))


def by_hand(own: list[float], client: int, wave: int, count: int, size: int | str) -> list[tuple[int, list[float]]]:
    """(Number, samples) of each of a client's mini-batches, from the named streams."""
    each = len(own) if size == "full" else int(size)
    found: list[list[float]] = []
    number = 0
    while len(found) < count:
        order = streams.permutations(streams.keys(SEED, "batches", wave, client, number), len(own))[0]
        found += [[own[i] for i in order[first : first + each]] for first in range(0, len(own), each)]
        number += 1
    return [*enumerate(found[:count])]


@pytest.mark.slow
@given(CASES, SIZE)
def test_mini_batches_are_those_of_epochs_one_after_the_other(
    jobs: list[tuple[int, int, int]], size: int | str
) -> None:
    """In a stack and alone, told by steps and as the order of whole jobs."""
    jobs = sorted(jobs, key=lambda job: job[1], reverse=True)
    sizes, counts, waves = ([*each] for each in zip(*jobs, strict=True))
    data, local = numbered(sizes), LocalSettings(batch_size=size, steps=99)
    together = Batches(data, local, SEED, waves, range(len(jobs)), counts)
    walked = walk(together)
    passes = -(-together.steps // together.a_pass)
    order = together.order(slice(None), passes)
    for client, count in enumerate(counts):
        own = data.train.x[data.client(client), 0].tolist()
        expected = by_hand(own, client, waves[client], count, size)
        assert walked[client] == expected
        assert walk(Batches(data, local, SEED, [waves[client]], [client], [count]))[0] == expected
        in_order = data.train.x[torch.from_numpy(order[client, : passes[client], : len(own)].flatten()), 0].tolist()
        told = [sample for _, part in expected for sample in part]
        assert in_order[: len(told)] == told
        assert seen(np.array([len(own)]), count, local) == len(told)


def test_all_of_a_batch_is_that_of_epochs() -> None:
    """Augmentation and the seeds of dropout too; every client has three mini-batches an epoch."""
    rng = np.random.default_rng(0)
    images = [(rng.normal(size=(n, 1, 6, 6)).astype(np.float32), np.zeros(n, int)) for n in (12, 9)]
    data = replace(FederatedData.from_clients(images, test=images[0]), augment=True)

    def made(clients: list[int], units: int, **counted: int) -> list[Batch]:
        local = LocalSettings(batch_size=4, **counted)
        return [*Batches(data, local, SEED, [1] * len(clients), clients, [units] * len(clients))]

    for clients in ([0], [1], [0, 1]):
        for number, (a, b) in enumerate(zip(made(clients, 2, epochs=2), made(clients, 6, steps=6), strict=True)):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.weights, b.weights)
            assert a.masks == b.masks
            assert (b.epochs, b.places) == (number, 0)
            assert np.equal(a.epochs, number // 3).all()
    assert len({batch.masks for batch in made([0], 6, steps=6)}) == 6


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 30), SIZE)
def test_samples_and_passes_of_mini_batches_are_added_up(sizes: list[int], count: int, size: int | str) -> None:
    """One after the other, until there are so many."""
    local, known = LocalSettings(batch_size=size, steps=count), np.array(sizes)
    parts = []
    for n in sizes:
        each = n if size == "full" else min(n, int(size))
        a_pass = [min(each, n - first) for first in range(0, n, each)]
        parts.append([a_pass[number % len(a_pass)] for number in range(count)])
    totals = [sum(part) for part in parts]
    assert seen(known, count, local).tolist() == totals
    assert [each.tolist() if isinstance(each, np.ndarray) else each for each in whole_jobs(known, local)] == [totals, 1]
    assert steps(known, count, local)[1].tolist() == count
    through = epochs_in(count, units_an_epoch(known, local))
    assert through.tolist() == pytest.approx([total / n for total, n in zip(totals, sizes, strict=True)])
    assert [*accumulate(parts[0])] == [seen(known[:1], number, local)[0] for number in range(1, count + 1)]


def test_who_has_no_data_sees_nothing() -> None:
    sizes = np.array([0, 5, 0])
    assert seen(sizes, 4, LocalSettings(batch_size=3, steps=4)).tolist() == [0, 10, 0]
    assert seen(sizes, 4, LocalSettings(batch_size="full", steps=4)).tolist() == [0, 20, 0]
    assert seen(sizes, 4, LocalSettings(epochs=4)).tolist() == [0, 20, 0]


def test_a_job_has_one_length() -> None:
    assert (LocalSettings().epochs, LocalSettings().units, LocalSettings().by_step) == (1, 1, False)
    assert (LocalSettings(epochs=3).units, LocalSettings(steps=7).units) == (3, 7)
    assert LocalSettings(steps=7).epochs is None
    with pytest.raises(InputError, match=r"^local\.epochs and local\.steps both say .*; keep one of the two$"):
        Experiment(local={"epochs": 1, "steps": 7})
