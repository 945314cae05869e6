"""What a model is built to fit."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.errors import InputError


@dataclass(frozen=True)
class Inputs:
    """The form of the data: `shape` is that of one sample, without the batch."""

    shape: tuple[int, ...]
    """(channels, height, width) of an image, (length,) of a token sequence."""
    classes: int
    """The numbers that the model gives per sample: one logit per class, one of a binary task, or real numbers."""
    vocabulary: int | None = None
    """The number of token ids, of which 0 is padding; None for data that is not text."""

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise InputError(f"inputs.shape must have sizes of at least 1; got {self.shape}")
        if self.classes < 1:
            raise InputError(f"inputs.classes must be at least 1; got {self.classes}")
        if self.vocabulary is not None and self.vocabulary < 2:
            raise InputError(f"inputs.vocabulary must be at least 2, or None; got {self.vocabulary}")

    def __str__(self) -> str:
        text = "" if self.vocabulary is None else f" of {self.vocabulary} token ids"
        return f"shape {tuple(self.shape)}{text}"
