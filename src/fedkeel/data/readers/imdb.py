"""IMDb reviews (Maas et al., 2011): the published aclImdb folder, and one JSON file of all reviews."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedkeel.data.readers.content import Labels, read_content
from fedkeel.errors import InputError, words

Reviews = tuple[list[str], Labels]


def read_split(folder: Path) -> Reviews:
    """Texts and sentiments (0 negative, 1 positive) below `folder`/{neg,pos}/*.txt, in order of names."""
    texts: list[str] = []
    counts = []
    for sentiment in ("neg", "pos"):
        paths = sorted((folder / sentiment).glob("*.txt"))
        if not paths:
            raise InputError(f"{folder / sentiment} must hold reviews as *.txt; got none")
        texts += [_decode(path) for path in paths]
        counts.append(len(paths))
    return texts, np.repeat([0, 1], counts)


def read_json(path: Path) -> tuple[Reviews, Reviews]:
    """Training and test reviews of a list of {t: text, s: sentiment}.

    The list holds four equal quarters, test/neg, train/neg, test/pos and train/pos, each in order of names.
    """
    texts, sentiments = _parse(path)
    quarter, rest = divmod(len(texts), 4)
    expected = np.repeat([0, 0, 1, 1], quarter)
    if not texts or rest or not np.array_equal(sentiments, expected):
        raise InputError(
            f"{path} must hold four equal quarters with s = 0, 0, 1, 1; got {len(texts)} reviews, "
            f"{sum(s == 1 for s in sentiments)} of them with s = 1"
        )
    quarters = [texts[start : start + quarter] for start in range(0, len(texts), quarter)]
    labels = np.repeat([0, 1], quarter)
    return (quarters[1] + quarters[3], labels), (quarters[0] + quarters[2], labels.copy())


def _decode(path: Path) -> str:
    try:
        return read_content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must hold UTF-8 text ({error})") from error


def _parse(path: Path) -> tuple[list[str], list[int]]:
    text = _decode(path)
    try:
        rows = json.loads(text)
        texts, sentiments = [row["t"] for row in rows], [row["s"] for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} must hold a JSON list of {{t: text, s: 0 or 1}} ({words(error)})") from error
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{path} must hold a text as every t")
    return texts, sentiments
