import json

import pytest

from fedkeel.data.readers import imdb
from fedkeel.errors import InputError


def write_folder(folder, reviews):
    for name, text in reviews.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)


def test_a_folder_is_read_in_order_of_names_negative_first(tmp_path):
    write_folder(
        tmp_path,
        {"pos/0_9.txt": b"p0", "neg/1_1.txt": b"n1", "neg/10_2.txt": "Amélie".encode(), "neg/0_3.txt": b"n0"},
    )
    texts, labels = imdb.read_split(tmp_path)
    assert texts == ["n0", "Amélie", "n1", "p0"]
    assert labels.tolist() == [0, 0, 0, 1]


def test_an_empty_folder_is_refused(tmp_path):
    write_folder(tmp_path, {"neg/0_1.txt": b"n"})
    with pytest.raises(InputError, match=r"pos must hold reviews as \*\.txt; got none"):
        imdb.read_split(tmp_path)


def test_a_review_that_is_no_text_is_refused(tmp_path):
    write_folder(tmp_path, {"neg/0_1.txt": b"\xff\xfe", "pos/0_9.txt": b"p"})
    with pytest.raises(InputError, match=r"0_1\.txt must hold UTF-8 text"):
        imdb.read_split(tmp_path)


def test_the_quarters_of_the_json_file(tmp_path):
    path = tmp_path / "reviews.json"
    rows = [("tn0", 0), ("tn1", 0), ("n0", 0), ("n1", 0), ("tp0", 1), ("tp1", 1), ("p0", 1), ("p1", 1)]
    path.write_text(json.dumps([{"t": text, "s": sentiment} for text, sentiment in rows]))
    (train, train_labels), (test, test_labels) = imdb.read_json(path)
    assert train == ["n0", "n1", "p0", "p1"]
    assert test == ["tn0", "tn1", "tp0", "tp1"]
    assert train_labels.tolist() == test_labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"t": "a", "s": 0}', "a JSON list"),
        ('{"t": "a"}', "a JSON list"),
        ('[{"t": "a"}]', "a JSON list"),
        ("3", "a JSON list"),
        ("[]", "four equal quarters"),
        ('[{"t": "a", "s": 0}]', "four equal quarters.*got 1 reviews, 0 of them with s = 1"),
        (json.dumps([{"t": "a", "s": s} for s in (0, 1, 0, 1)]), "four equal quarters"),
        (json.dumps([{"t": "a", "s": s} for s in (0, 0, 1, 2)]), "four equal quarters"),
        (json.dumps([{"t": None, "s": s} for s in (0, 0, 1, 1)]), "a text as every t"),
    ],
)
def test_a_damaged_json_file_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "reviews.json"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"reviews\.json must hold {message}"):
        imdb.read_json(path)
