"""Text to token ids, without a vocabulary file: words are hashed into buckets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import InputError

PADDING = 0
SCHEME = 1  # to be raised whenever the same text would get other ids
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BREAK = re.compile(r"<br\s*/?>")


def words(text: str) -> list[str]:
    """The lower-case words of a text: letters and digits, with apostrophes inside; line-break tags vanish."""
    plain = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return _WORD.findall(_BREAK.sub(" ", plain))


@dataclass(frozen=True)
class HashingTokenizer:
    """Maps a text to `length` ids below `vocabulary`, the padding's id 0 included.

    Of a longer text the *last* words are kept, as a review's verdict tends to stand at its end. A shorter text
    is padded at its end.
    """

    vocabulary: int = 20_000
    length: int = 256

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise InputError(f"vocabulary must be at least 2, as one id is for padding; got {self.vocabulary}")
        if self.length < 1:
            raise InputError(f"length must be at least 1; got {self.length}")

    def token(self, word: str) -> int:
        """A word's id, 1..vocabulary-1: the same on every machine, in every process."""
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return 1 + int.from_bytes(digest, "little") % (self.vocabulary - 1)

    def encode(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Ids of shape [texts, length]."""
        ids = np.full((len(texts), self.length), PADDING, np.int64)
        for row, tokens in zip(ids, self._tokens(texts), strict=True):
            row[: len(tokens)] = tokens
        return ids

    def _tokens(self, texts: Iterable[str]) -> Iterable[list[int]]:
        known = _Known(self)
        return ([known[word] for word in words(text)[-self.length :]] for text in texts)


class _Known(dict[str, int]):
    """Hashes every distinct word once."""

    def __init__(self, tokenizer: HashingTokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> int:
        self[word] = self._tokenizer.token(word)
        return self[word]
