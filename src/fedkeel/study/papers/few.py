"""A few samples of the papers' data sets, kept in memory, because loading all takes longer than the smallest runs.

An experiment names them as `fedkeel.study.papers.few:cifar10`, or `cifar10_unit` and `cifar10_none` where
`dataset.normalise` says so. They are drawn at random, always the same ones. Nothing is downloaded: the data sets must
be on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch

from fedkeel.data import datasets
from fedkeel.data.datasets import Dataset, Examples, Scaling
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.study.papers.standin import TEST, TRAIN, meant, spelled


def __getattr__(name: str) -> Callable[[], Dataset]:
    """`mnist`, `tiny_imagenet` and so on: for each data set a function that returns a few of its samples."""
    dataset, scaling = meant(name)
    if dataset not in ENTRIES:
        raise AttributeError(f"there is no data set {dataset}")
    return partial(_few, dataset, scaling)


def function(name: str, scaling: Scaling = "standard") -> str:
    """What an experiment names to get a few samples of a data set."""
    return f"{__name__}:{spelled(name, scaling)}"


@cache
def _few(name: str, scaling: Scaling) -> Dataset:
    whole = datasets.load(name, fetch=False, scaling=scaling)
    draw = torch.Generator().manual_seed(0)
    train, test = (_drawn(*each, draw) for each in ((whole.train, TRAIN), (whole.test, TEST)))
    return Dataset(name, train, test, whole.classes, whole.vocabulary)


def _drawn(examples: Examples, count: int, draw: torch.Generator) -> Examples:
    chosen = torch.randperm(len(examples), generator=draw)[:count]
    return Examples(examples.x[chosen], examples.y[chosen])
