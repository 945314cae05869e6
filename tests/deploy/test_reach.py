"""Whether the server is reached, from what nodes write."""

from __future__ import annotations

import pytest

from fedkeel.deploy.reach import PATIENCE, SILENCE, Reach
from tests.helpers.scripted import Clock

FAILED = "WARNING :      Connection attempt failed, retrying in 1.20 seconds"
BACK = "INFO :      Connection successful after 30.10 seconds and 9 tries."
STOCK, FAST = "INFO :      SuperNode ID: 77", "2026-11-18 03:45:17,349 connected as node 77"
AWAY = (
    "the server cannot be reached at far:8000; check --superlink, whether the server runs, and whether a firewall lets "
    "this machine through; trying again"
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reach(clock: Clock) -> Reach:
    made = Reach("north", "far:8000", clock)
    made.started()
    return made


@pytest.mark.parametrize("line", [STOCK, FAST])
def test_a_connection_is_told(reach: Reach, clock: Clock, line: str) -> None:
    assert reach.heard(line) == "north is connected with far:8000; Ctrl-C stops it"
    clock.sleep(1e6)
    assert reach.waited() is None


def test_a_node_that_says_nothing_is_told_once(reach: Reach, clock: Clock) -> None:
    assert reach.waited() is None
    clock.sleep(SILENCE)
    assert [reach.waited(), reach.waited()] == [AWAY, None]
    assert reach.heard(STOCK) is not None


def test_a_node_that_cannot_connect_is_told_once(reach: Reach, clock: Clock) -> None:
    told = []
    for _ in range(9):
        told += [reach.heard(FAILED), reach.waited()]
        clock.sleep(SILENCE / 2)
    assert [each for each in told if each] == [AWAY]


def test_a_server_that_comes_back_is_told(reach: Reach, clock: Clock) -> None:
    reach.heard(STOCK)
    reach.heard(FAILED)
    clock.sleep(PATIENCE)
    assert reach.waited() == AWAY
    assert reach.heard(BACK) == "north is connected with far:8000 again"
    clock.sleep(1e6)
    assert reach.waited() is None


def test_a_short_absence_is_not_told(reach: Reach, clock: Clock) -> None:
    reach.heard(STOCK)
    reach.heard(FAILED)
    clock.sleep(PATIENCE / 2)
    assert (reach.waited(), reach.heard(BACK)) == (None, None)


def test_a_server_that_comes_late_is_told_once(reach: Reach, clock: Clock) -> None:
    clock.sleep(SILENCE)
    assert reach.waited() == AWAY
    assert [reach.heard(BACK), reach.heard(STOCK)] == [None, "north is connected with far:8000; Ctrl-C stops it"]


def test_our_own_node_says_why(reach: Reach) -> None:
    reach.heard(FAST)
    line = "2026-11-18 03:45:17,349 the SuperLink cannot be reached: Connection refused; trying again"
    assert reach.heard(line) == AWAY.replace("8000;", "8000 (Connection refused);")
    assert reach.heard("2026-11-18 03:45:18,000 no way; trying again") == "no way; trying again"
    assert reach.heard("03:46 the SuperLink answers again") == "north is connected with far:8000 again"


def test_other_lines_are_not_told(reach: Reach) -> None:
    assert [reach.heard(line) for line in ("", "of no interest")] == [None, None]


@pytest.mark.parametrize(
    "line", [FAILED, "2026-11-18 03:45:17,349 the SuperLink cannot be reached: refused; trying again"]
)
def test_a_server_that_ends_after_its_run_is_no_fault(reach: Reach, clock: Clock, line: str) -> None:
    reach.heard(STOCK)
    reach.completed()
    told = [reach.heard(line)]
    clock.sleep(PATIENCE)
    told.append(reach.waited())
    assert [each for each in told if each] == ["the server at far:8000 has ended; north waits for the next one"]
    reach.heard(STOCK)
    reach.heard(FAILED)
    clock.sleep(PATIENCE)
    assert reach.waited() == AWAY
