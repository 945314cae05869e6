"""Who sees which samples: alone and in stacks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.data.federated import FederatedData
from fedkeel.local.batches import Batches
from fedkeel.local.settings import LocalSettings
from tests.helpers.numbered import numbered, walk

JOBS = st.lists(st.tuples(st.integers(1, 17), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=5)
"""(Samples, epochs, round) of each client of a stack."""


@pytest.mark.slow
@given(JOBS, st.one_of(st.integers(1, 8), st.just("full")))
def test_a_client_sees_in_a_stack_what_it_sees_alone(jobs: list[tuple[int, int, int]], size: int | str) -> None:
    local = LocalSettings(batch_size=size)

    def count(job: tuple[int, int, int]) -> int:
        return -(-job[0] // (job[0] if size == "full" else int(size))) * job[1]

    jobs = sorted(jobs, key=count, reverse=True)
    sizes, epochs, rounds = ([*each] for each in zip(*jobs, strict=True))
    data = numbered(sizes)
    together = walk(Batches(data, local, 7, rounds, range(len(jobs)), epochs))
    for client in range(len(jobs)):
        alone = walk(Batches(data, local, 7, [rounds[client]], [client], [epochs[client]]))[0]
        assert together[client] == alone
        assert len(alone) == count(jobs[client])
        own = data.train.x[data.client(client), 0].tolist()
        for epoch in range(epochs[client]):
            seen = [number for when, part in alone if when == epoch for number in part]
            assert sorted(seen) == own, "every sample once an epoch"


def test_shorter_jobs_must_come_last() -> None:
    with pytest.raises(ValueError, match="descending"):
        iter(Batches(numbered([4, 9]), LocalSettings(batch_size=2), 0, [1, 1], [0, 1], [1, 1]))


def test_augmentation_in_a_stack_is_that_of_each_client() -> None:
    rng = np.random.default_rng(0)
    images = [(rng.normal(size=(n, 1, 6, 6)).astype(np.float32), np.zeros(n, int)) for n in (9, 7, 4)]
    data = replace(FederatedData.from_clients(images, test=images[0]), augment=True)
    local = LocalSettings(batch_size=4)
    together = list(Batches(data, local, 3, [1, 1, 1], [0, 1, 2], [2, 2, 2]))
    for client in range(3):
        for number, alone in enumerate(Batches(data, local, 3, [1], [client], [2])):
            torch.testing.assert_close(together[number].x[client, : alone.sizes[0]], alone.x[0], rtol=0, atol=0)
