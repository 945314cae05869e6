"""The published forms of each data set: its files and the reader that takes a folder of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedkeel.data.datasets import files
from fedkeel.data.readers import cifar, idx, imdb, tiny_imagenet
from fedkeel.data.readers.content import Images, Labels, require
from fedkeel.data.sources.layout import File, Layout, Splits

ReadBatch = Callable[[Path], tuple[Images, Labels]]


def _read_digits(folder: Path) -> Splits:
    return idx.read_split(folder, "train", classes=10), idx.read_split(folder, "t10k", classes=10)


def _read_letters(folder: Path) -> Splits:
    train, test = (idx.read_letters_split(folder, f"emnist-letters-{split}") for split in ("train", "test"))
    return train, test


def _read_reviews(folder: Path) -> Splits:
    return imdb.read_json(require(folder, "reviews.json"))


def _read_review_folders(folder: Path) -> Splits:
    return imdb.read_split(folder / "train"), imdb.read_split(folder / "test")


def _read_tiny_imagenet(folder: Path) -> Splits:
    return tiny_imagenet.read_train(folder, 200), tiny_imagenet.read_validation(folder, 200)


def _batches(batches: Sequence[File], read: ReadBatch, unpacked: str) -> Layout:
    """A CIFAR data set: training batches, and last the test batch."""
    names = [file.name for file in batches]

    def read_folder(folder: Path) -> Splits:
        *train, test = (read(require(folder, name)) for name in names)
        images, labels = zip(*train, strict=True)
        return (np.concatenate(images), np.concatenate(labels)), test

    return Layout(tuple(batches), read_folder, unpacked)


MNIST = Layout(files.MNIST, _read_digits)
FASHION_MNIST = Layout(files.FASHION_MNIST, _read_digits)
FASHION_MNIST_MINI = Layout(files.FASHION_MNIST_MINI, _read_digits)
EMNIST_LETTERS = Layout(files.EMNIST_LETTERS, _read_letters, "gzip")
CIFAR10 = (
    _batches(
        files.CIFAR10_BINARY,
        partial(cifar.read_binary, classes=10, label_bytes=1),
        "cifar-10-batches-bin",
    ),
    _batches(
        files.CIFAR10_PICKLE,
        partial(cifar.read_pickle, classes=10, label_key="labels"),
        "cifar-10-batches-py",
    ),
)
CIFAR100 = (
    _batches(
        files.CIFAR100_BINARY,
        partial(cifar.read_binary, classes=100, label_bytes=2),
        "cifar-100-binary",
    ),
    _batches(
        files.CIFAR100_PICKLE,
        partial(cifar.read_pickle, classes=100, label_key="fine_labels"),
        "cifar-100-python",
    ),
)
IMDB = (
    Layout(files.IMDB_JSON, _read_reviews),
    Layout(files.IMDB_FOLDERS, _read_review_folders, "aclImdb"),
)
TINY_IMAGENET = Layout(files.TINY_IMAGENET, _read_tiny_imagenet, "tiny-imagenet-200")
