"""What messages are made of."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.errors import LONGEST, counted, label, shown, unknown, words

anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates(), st.datetimes()),
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner), st.dictionaries(st.text(), inner)),
)


@pytest.mark.slow
@given(anything)
def test_a_value_is_shown_on_one_short_line(value: object) -> None:
    for text in (shown(value), label(value)):
        assert text.isprintable()
        assert len(text) <= LONGEST + 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a b", "'a b'"),
        (datetime.date(2001, 2, 3), "2001-02-03"),
        ([[[[[1]]]]], "[[[[...]]]]"),
        ("a\nb\x1b\ud800", r"'a\nb\x1b\ud800'"),
        ("x" * 100, f"'{'x' * 37}...{'x' * 38}'"),
    ],
)
def test_how_values_are_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_an_integer_that_python_cannot_write_down() -> None:
    assert shown(10**5000) == shown([10**5000])[1:-1] == "an integer of 16610 bits"


def test_an_object_whose_text_fails_or_breaks_lines() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    class Long:
        def __repr__(self) -> str:
            return "a\n  b"

    assert "Odd" in shown(Odd())
    assert shown(Long()) == "a b"


def test_names_stay_as_they_are_unless_they_would_spoil_the_message() -> None:
    assert label("local.lr") == "local.lr"
    assert label("ü") == "ü"
    assert label(None) == "None"
    assert label("a\nb") == r"'a\nb'"
    assert label("x" * 300).startswith("'xxx")


def test_words_of_other_errors() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert words(ValueError("a\n  b")) == "a b"
    assert words(ValueError("\x1b[31m")) == r"'\x1b[31m'"
    assert words(MuteError()) == ""
    assert len(words(ValueError("x" * 10_000))) < 600


def test_an_unknown_name_may_be_anything() -> None:
    assert str(unknown("f", 10**5000, ["a"])) == "f: an integer of 16610 bits is not known; choose a"
    assert str(unknown("f", "fedagv", ["fedavg"], "method")) == ("f: 'fedagv' is not a method; did you mean fedavg?")
    assert (
        str(unknown("f", "x", ["b", "a"], also="module:name"))
        == "f: 'x' is not known; choose one of a, b or module:name"
    )


def test_counts_have_a_singular() -> None:
    found = [counted(1, "round"), counted(0, "round"), counted(2, "round"), counted(1, "class"), counted(1000, "class")]
    assert found == ["1 round", "0 rounds", "2 rounds", "1 class", "1,000 classes"]
