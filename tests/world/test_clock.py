from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.errors import FedkeelError
from fedkeel.world.clock import EventQueue

events = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.5, 2.0]), st.integers(0, 2)), max_size=30)


@given(events)
def test_order_is_time_then_rank_then_scheduling(plan: list[tuple[float, int]]) -> None:
    queue: EventQueue[int] = EventQueue()
    for number, (time, rank) in enumerate(plan):
        queue.schedule(time, (rank,), number)
    taken = [*queue.until(inf)]
    assert taken == sorted(range(len(plan)), key=lambda i: (*plan[i], i))
    assert not queue.heap


@given(st.lists(st.floats(0, 5), min_size=1, max_size=20))
def test_time_never_runs_backwards_while_handlers_schedule_more(delays: list[float]) -> None:
    queue: EventQueue[int] = EventQueue()
    queue.schedule(0.0, (0,), 0)
    times = []
    for number in queue.until(inf):
        times.append(queue.now)
        if number < len(delays):
            queue.schedule(queue.now + delays[number], (0,), number + 1)
    assert times == sorted(times)
    assert len(times) == len(delays) + 1


@pytest.mark.parametrize("time", [0.5, float("nan")])
def test_the_past_is_refused(time: float) -> None:
    queue: EventQueue[str] = EventQueue()
    queue.schedule(1.0, (0,), "a")
    next(queue.until(inf))
    with pytest.raises(FedkeelError, match="cannot be scheduled before the present, "):
        queue.schedule(time, (0,), "b")
