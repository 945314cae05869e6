import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.data.text import HashingTokenizer, words
from fedkeel.errors import InputError

vocabularies = st.integers(2, 30_000)
lengths = st.integers(1, 12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's GREAT, isn't it?", ["it's", "great", "isn't", "it"]),
        ("don\N{RIGHT SINGLE QUOTATION MARK}t", ["don't"]),
        ("one<br /><br />two<br>three", ["one", "two", "three"]),
        ("'quoted' rock'n'roll 10/10", ["quoted", "rock'n'roll", "10", "10"]),
        ("Amélie_2001", ["amélie", "2001"]),
        (" ,.! ", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_ids_are_the_same_in_every_process():
    """Python's own hash() differs from process to process; these ids were written down once."""
    tokens = [HashingTokenizer(vocabulary=20_000).token(word) for word in ("movie", "great", "isn't")]
    assert tokens == [7302, 4589, 10407]


def test_equal_words_have_equal_ids_wherever_they_stand():
    ids = HashingTokenizer(length=4).encode(["good bad good", "bad"])
    assert ids[0, 0] == ids[0, 2] != ids[0, 1] == ids[1, 0]


def test_the_last_words_are_kept_and_padding_follows():
    tokenizer = HashingTokenizer(length=3)
    a, b, c, d = (tokenizer.token(word) for word in "abcd")
    assert tokenizer.encode(["a b c d", "d a", ""]).tolist() == [[b, c, d], [d, a, 0], [0, 0, 0]]


@pytest.mark.slow
@given(st.lists(st.text(), max_size=4), vocabularies, lengths)
def test_ids_are_in_range_and_zero_only_at_the_end(texts, vocabulary, length):
    ids = HashingTokenizer(vocabulary, length).encode(texts)
    assert ids.shape == (len(texts), length)
    assert ids.dtype == np.int64
    assert ((ids >= 0) & (ids < vocabulary)).all()
    filled = [min(len(words(text)), length) for text in texts]
    assert [np.count_nonzero(row) for row in ids] == filled
    assert all(row[:count].all() for row, count in zip(ids, filled, strict=True))


@given(st.lists(st.text(), min_size=2, max_size=4), vocabularies, lengths)
def test_a_text_is_encoded_independently_of_its_neighbours(texts, vocabulary, length):
    tokenizer = HashingTokenizer(vocabulary, length)
    one_by_one = np.concatenate([tokenizer.encode([text]) for text in texts])
    assert np.array_equal(tokenizer.encode(texts), one_by_one)


def test_many_words_spread_over_all_buckets():
    tokenizer = HashingTokenizer(vocabulary=101)
    counts = np.bincount([tokenizer.token(f"word{i}") for i in range(20_000)], minlength=101)
    assert counts[0] == 0
    assert counts[1:].min() > 120
    assert counts[1:].max() < 280


@pytest.mark.parametrize(("field", "value"), [("vocabulary", 1), ("length", 0)])
def test_too_small_settings_are_refused(field, value):
    with pytest.raises(InputError, match=rf"{field} must be at least \d.*; got {value}"):
        HashingTokenizer(**{field: value})
