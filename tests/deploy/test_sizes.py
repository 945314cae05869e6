"""Sizes of sites that methods compute with before all sites are there."""

from __future__ import annotations

import pytest

from fedkeel.deploy.deployment import first_sizes
from fedkeel.world.remote.pooling import Pooling
from fedkeel.world.remote.roster import Member, Roster
from tests.helpers.scripted import Scripted


def test_sites_that_are_not_there_yet_count_with_the_mean_of_the_others() -> None:
    roster = Roster(Scripted(), ["a", "b", "c", "d"], "f" * 32, 1, Pooling(lambda _: pytest.fail("unasked")))
    for client, samples, ready in ((0, 10, True), (2, 20, True), (3, 10**12, False)):
        roster.members[client] = Member(client, client, {"samples": samples}, ready)
    assert roster.samples.tolist() == [10, 0, 20, 0]
    assert first_sizes(roster).tolist() == [10, 15, 20, 15]
