"""Data in the shape of the papers' data sets, for machines that do not have them: a run works, and means nothing.

An experiment names one as `fedkeel.study.papers.standin:cifar100`. Images are noise and texts are random words; labels
are as frequent as any other, and have nothing to do with either.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch

from fedkeel.data.datasets import Dataset, Examples
from fedkeel.data.datasets.registry import ENTRIES, Entry

TRAIN, TEST = 1000, 400
"""Samples; enough for the smallest scale."""


def __getattr__(name: str) -> Callable[[], Dataset]:
    """`mnist`, `tiny_imagenet` and so on: for each data set a function that returns its stand-in."""
    dataset = name.replace("_", "-")
    if dataset not in ENTRIES:
        raise AttributeError(f"there is no stand-in for {dataset}")
    return partial(_random, dataset)


def function(name: str) -> str:
    """What an experiment names to get the stand-in of a data set."""
    return f"{__name__}:{name.replace('-', '_')}"


def about(name: str) -> str:
    """A stand-in in a few words."""
    entry = ENTRIES[name]
    what = "random images" if entry.vocabulary is None else "random texts"
    return f"{what}, {' x '.join(map(str, entry.shape))}, {entry.classes} classes; accuracy means nothing"


@cache
def _random(name: str) -> Dataset:
    entry = ENTRIES[name]
    draw = torch.Generator().manual_seed(0)
    train, test = (_examples(entry, count, draw) for count in (TRAIN, TEST))
    return Dataset(f"stand-in for {name}", train, test, entry.classes, entry.vocabulary)


def _examples(entry: Entry, count: int, draw: torch.Generator) -> Examples:
    y = torch.arange(count) % entry.classes
    if entry.vocabulary is None:
        return Examples(torch.randn((count, *entry.shape), generator=draw), y)
    return Examples(torch.randint(1, entry.vocabulary, (count, *entry.shape), generator=draw), y)
