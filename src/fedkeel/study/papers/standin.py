"""Data in the shape of the papers' data sets, for machines that do not have them: a run works, but means nothing.

An experiment names one as `fedkeel.study.papers.standin:cifar100`, or `cifar100_unit` and `cifar100_none` where
`dataset.normalise` says so. Images are noise and texts are random words. All labels are equally frequent and have
nothing to do with the images or texts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import get_args

import torch

from fedkeel.data.datasets import Dataset, Examples, Scaling
from fedkeel.data.datasets.registry import ENTRIES, Entry

TRAIN, TEST = 1000, 400
"""Samples; enough for the smallest scale."""


def __getattr__(name: str) -> Callable[[], Dataset]:
    """`mnist`, `tiny_imagenet` and so on: for each data set a function that returns its stand-in."""
    dataset, scaling = meant(name)
    if dataset not in ENTRIES:
        raise AttributeError(f"there is no stand-in for {dataset}")
    return partial(_random, dataset, scaling)


def function(name: str, scaling: Scaling = "standard") -> str:
    """What an experiment names to get the stand-in of a data set."""
    return f"{__name__}:{spelled(name, scaling)}"


def spelled(name: str, scaling: Scaling) -> str:
    """A data set and how its images are scaled, as the name of a function."""
    return name.replace("-", "_") + ("" if scaling == "standard" else f"_{scaling}")


def meant(function: str) -> tuple[str, Scaling]:
    """Which data set such a name means, and how its images are scaled."""
    found: Scaling = next((each for each in get_args(Scaling) if function.endswith(f"_{each}")), "standard")
    return function.removesuffix(f"_{found}").replace("_", "-"), found


def about(name: str) -> str:
    """A stand-in in a few words."""
    entry = ENTRIES[name]
    what = "random images" if entry.vocabulary is None else "random texts"
    return f"{what}, {' x '.join(map(str, entry.shape))}, {entry.classes} classes; accuracy means nothing"


@cache
def _random(name: str, scaling: Scaling) -> Dataset:
    entry = ENTRIES[name]
    draw = torch.Generator().manual_seed(0)
    train, test = (_examples(entry, count, draw, scaling) for count in (TRAIN, TEST))
    return Dataset(f"stand-in for {name}", train, test, entry.classes, entry.vocabulary)


def _examples(entry: Entry, count: int, draw: torch.Generator, scaling: Scaling) -> Examples:
    y, shape = torch.arange(count) % entry.classes, (count, *entry.shape)
    if entry.vocabulary is not None:
        return Examples(torch.randint(1, entry.vocabulary, shape, generator=draw), y)
    if scaling == "standard":
        return Examples(torch.randn(shape, generator=draw), y)
    pixels = torch.randint(256, shape, generator=draw).float()
    return Examples(pixels if scaling == "none" else pixels / 255, y)
