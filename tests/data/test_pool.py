"""Summaries and counts on their way to the server, and what the server makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedkeel.data.pool import pooled_summary, pooled_total
from fedkeel.data.summaries import EXCHANGES, NUMBERS, Summary, combine, medians, summarise
from fedkeel.data.summary_wire import counts_from_wire, summary_from_wire, summary_to_wire
from fedkeel.errors import InputError
from fedkeel.world.remote.message import Message

FIELDS = ("count", "mean", "squares", "low", "high")
values = st.floats(-1e100, 1e100) | st.just(np.nan)
words = st.dictionaries(st.text(), st.lists(st.text()), max_size=3)


def same(one: Summary, other: Summary) -> None:
    assert (one.rows, one.categories, one.schema) == (other.rows, other.categories, other.schema)
    for name in FIELDS:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float64, st.tuples(st.integers(0, 6), st.integers(0, 4)), elements=values), words, st.text())
def test_a_summary_arrives_as_it_was_sent(rows: np.ndarray, categories: dict[str, list[str]], schema: str) -> None:
    sent = replace(summarise(rows, categories), schema=schema)
    message = Message.unpack(Message("summary", *summary_to_wire(sent)).pack())
    same(summary_from_wire(message.facts, message.tensors), sent)


def doubles(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


GOOD = summary_to_wire(summarise(np.arange(6.0).reshape(3, 2), {"sex": ["f", "m", "f"]}))


@pytest.mark.parametrize(
    ("facts", "tensors"),
    [
        ({"rows": -1}, {}),
        ({"rows": 2}, {}),
        ({"rows": True}, {}),
        ({"rows": None}, {}),
        ({"schema": 3}, {}),
        ({"categories": ["sex"]}, {}),
        ({"categories": {"sex": "fm"}}, {}),
        ({"categories": {"sex": [1]}}, {}),
        ({}, {"count": None}),
        ({}, {"count": torch.tensor([3.0, 3.0])}),
        ({}, {"count": torch.tensor([3, -3])}),
        ({}, {"count": torch.tensor(3)}),
        ({}, {"mean": None}),
        ({}, {"mean": torch.zeros(2)}),
        ({}, {"high": torch.zeros(3, dtype=torch.float64)}),
        ({"rows": 10**13}, {}),
        ({}, {"mean": doubles(2.0, np.inf)}),
        ({}, {"squares": doubles(np.inf, 8.0)}),
        ({}, {"squares": doubles(8.0, -1.0)}),
        ({}, {"low": doubles(5.0, 1.0)}),
        ({}, {"low": doubles(np.nan, 1.0)}),
        ({}, {"count": torch.tensor([3, 0])}),
    ],
)
def test_what_is_no_summary_is_refused(facts: dict[str, Any], tensors: dict[str, Any]) -> None:
    changed = {name: each for name, each in {**GOOD[1], **tensors}.items() if each is not None}
    summary_from_wire(*GOOD)
    with pytest.raises(InputError):
        summary_from_wire({**GOOD[0], **facts}, changed)


def test_summaries_are_combined_in_the_order_of_the_sites() -> None:
    rng = np.random.default_rng(0)
    told = [replace(summarise(rng.normal(size=(n, 3))), schema="s") for n in (3, 1, 20)]
    same(pooled_summary(told, ["a", "b", "c"]), combine(told))


def test_the_site_that_differs_is_named() -> None:
    usual = replace(summarise(np.zeros((2, 2)), {"sex": ["f", "m"]}), schema="s")
    strange = {
        "columns of other names or kinds": replace(usual, schema="t"),
        "another number of columns": replace(summarise(np.zeros((2, 1)), {"sex": ["f"]}), schema="s"),
        "other columns of categories": replace(usual, categories={}),
    }
    for said, each in strange.items():
        with pytest.raises(InputError, match=f"^data: Genf has {said}"):
            pooled_summary([usual, each, usual], ["Bern", "Genf", "Ulm"])
    for name in NUMBERS:
        lacks = replace(usual, **{name: np.array([np.nan, 0.0])})
        with pytest.raises(InputError, match=r"^data: Genf tells other statistics of its columns than most sites"):
            pooled_summary([usual, lacks, usual], ["Bern", "Genf", "Ulm"])
    with pytest.raises(InputError, match=r"^data: Ulm has counts of another shape"):
        pooled_total([np.zeros(2, int), np.zeros(2, int), np.zeros((1, 2), int)], ["Bern", "Genf", "Ulm"])


def test_counts_are_added() -> None:
    assert pooled_total([np.array([1, 2]), np.array([3, 4])], ["a", "b"]).tolist() == [4, 6]
    for wrong in (torch.tensor([0.5]), torch.tensor([-1]), torch.tensor([2**62])):
        with pytest.raises(InputError, match="counts must be whole numbers"):
            counts_from_wire(wrong)


def test_a_site_without_values_of_a_column_tells_nothing_of_it() -> None:
    some, none = (replace(summarise(np.array(rows)), schema="s") for rows in ([[1.0, 2.0]], [[3.0, np.nan]]))
    assert pooled_summary([none, some], ["a", "b"]).mean.tolist() == [2.0, 2.0]
    assert pooled_summary([none, none], ["a", "b"]).count.tolist() == [2, 0]


def test_numbers_that_are_too_large_together_are_told() -> None:
    told = [summarise(np.array([[1.0], [2.0]])), summarise(np.array([[1e200]]))]
    with pytest.raises(InputError, match=r"^data: the numbers of Genf are too large to be put together"):
        pooled_summary(told, ["Bern", "Genf"])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_medians_with_others_elsewhere_take_eight_exchanges(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.integers(-3, 3, (n, columns)).astype(float) for n in (4, 0, 7)]
    count = combine([summarise(part) for part in parts]).count
    answers: list[np.ndarray] = []
    whole = medians(parts, count, lambda own: answers.append(own) or own)  # type: ignore[func-returns-value]
    assert whole == pytest.approx(np.median(np.concatenate(parts), axis=0))
    for part in parts:
        asked: list[np.ndarray] = []

        def total(own: np.ndarray, asked: list[np.ndarray] = asked) -> np.ndarray:
            asked.append(own)
            return answers[len(asked) - 1]

        assert medians([part], count, total).tobytes() == whole.tobytes()
        assert [each.shape for each in asked] == [(2, columns, 256)] * EXCHANGES
        assert asked[0].sum() == 2 * part.size
