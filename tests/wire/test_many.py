"""Orders in columns: whatever is done to them comes to the same as with a plain list of orders."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.methods.job import Fresh
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Order, Same, stacked

NAMES = [each.name for each in fields(Order)]
NUMBERS = ("job", "client", "round", "epochs", "wave", "version", "slot")
TENSORS = [torch.full((3,), float(number)) for number in range(3)]
MESSAGES: list[dict[str, Any]] = [{}, {"c": TENSORS[0]}, {"c": TENSORS[1]}]
FRESH = [None, Fresh(TENSORS[1], TENSORS[2], 4)]


def an_order(job: int) -> st.SearchStrategy[Order]:
    number, tensor, message = st.integers(0, 9), st.sampled_from(TENSORS), st.sampled_from(MESSAGES)
    first = st.just(job), number, number, number, tensor, tensor, tensor, message, message
    return st.builds(Order, *first, st.booleans(), number, number, number, st.sampled_from(FRESH))


def a_list(least: int = 1) -> st.SearchStrategy[list[Order]]:
    """Of different orders, or of some that differ in their numbers only, as those of one dispatch do."""
    different = st.integers(least, 6).flatmap(lambda count: st.tuples(*map(an_order, range(1, count + 1))))
    alike = st.tuples(an_order(1), st.integers(least, 6)).map(
        lambda pair: tuple(replace(pair[0], job=job, client=job * 7 % 5) for job in range(1, pair[1] + 1))
    )
    return (different | alike).map(list)


def the_same(found: Orders, expected: list[Order]) -> None:
    """All columns, all rows and all tensors themselves."""
    assert len(found) == len(expected)
    for name in NAMES:
        column, values = getattr(found, name), [getattr(order, name) for order in expected]
        if name in NUMBERS:
            assert column.dtype == np.int64
            assert column.tolist() == found.numbers(name) == values
        else:
            assert all(one is other for one, other in zip(column, values, strict=True))
            assert found.all_have(name, values[0]) == all(value is values[0] for value in values)
    assert found.drawn.tolist() == [order.drawn for order in expected]
    for orders in ([found[row] for row in range(len(expected))], [*found], found[:]):
        for order, other in zip(orders, expected, strict=True):
            assert all(getattr(order, name) is getattr(other, name) or name in NUMBERS for name in NAMES)
            assert all(getattr(order, name) == getattr(other, name) for name in NUMBERS)
            assert all(type(getattr(order, name)) is int for name in NUMBERS)


def in_columns(orders: list[Order]) -> Orders:
    """Without rows: they are to be made from the columns."""
    made = Orders.of(orders)
    return Orders(**{name: getattr(made, name) for name in NAMES})


@pytest.mark.parametrize("make", [Orders.of, in_columns])
@given(data=st.data())
def test_columns_and_rows_are_the_same_orders(make: Any, data: st.DataObject) -> None:
    orders = data.draw(a_list())
    the_same(make(orders), orders)
    rows = data.draw(st.lists(st.integers(0, len(orders) - 1), min_size=1))
    the_same(make(orders).pick(np.array(rows)), [orders[row] for row in rows])
    others = data.draw(st.lists(a_list(), max_size=3))
    the_same(Orders.joined([make(orders), *map(make, others)]), sum(others, orders))
    epochs = np.array([data.draw(st.integers(1, 5)) for _ in orders])
    changed = make(orders).but(epochs=epochs, kept=Same(MESSAGES[1], len(orders)))
    the_same(changed, [replace(o, epochs=int(e), kept=MESSAGES[1]) for o, e in zip(orders, epochs, strict=True)])
    the_same(make(orders), orders)  # as they were


def test_what_all_share_is_one_value() -> None:
    one = Order(1, 0, 1, 2, TENSORS[0], TENSORS[1], TENSORS[2], {}, {})
    made = Orders.of([one, replace(one, job=2, lr=TENSORS[0])])
    assert isinstance(made.start, Same)
    assert made.start.value is TENSORS[0]
    assert made.lr == [TENSORS[2], TENSORS[0]]
    assert Orders.of(made) is made
    assert stacked(made.start, torch.device("cpu")).stride() == (0, 1)  # no copy
    with pytest.raises(AttributeError):
        _ = made.nothing


def test_one_value_is_a_sequence() -> None:
    same = Same("a", 3)
    assert [*same] == ["a"] * 3
    assert (same[0], same[-3], len(same[1:])) == ("a", "a", 2)
    for place in (3, -4):
        with pytest.raises(IndexError):
            same[place]
