"""When clients came and left, also if the server is started again."""

from fedkeel.world.remote.attendance import Attendance


def test_each_change_is_remembered_once() -> None:
    seen, changes = Attendance(), list[int]()
    seen.changed = lambda: changes.append(1)
    for now, present in ((0.0, {0, 1}), (1.0, {0, 1}), (2.0, {1}), (3.0, {1, 2}), (4.0, {0, 1, 2})):
        seen.see(frozenset(present), now)
    assert seen.times == {0: [0.0, 2.0, 4.0], 1: [0.0], 2: [3.0]}
    assert len(changes) == 4


def test_a_server_that_is_started_again_goes_on() -> None:
    before, after = Attendance(), Attendance()
    before.see(frozenset({0, 1}), 0.0)
    after.restore(before.snapshot())
    after.see(frozenset({1}), 7.0)
    assert after.times == {0: [0.0, 7.0], 1: [0.0]}
