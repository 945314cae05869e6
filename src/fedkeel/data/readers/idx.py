"""IDX, the format of MNIST, Fashion-MNIST and EMNIST: big-endian header, then unsigned bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedkeel.data.readers.content import Images, Labels, check_labels, read_content, require
from fedkeel.errors import InputError

_UNSIGNED_BYTES = 0x08


def read_split(folder: Path, prefix: str, classes: int, first: int = 0) -> tuple[Images, Labels]:
    """Images [n, 1, rows, columns] and labels [n] of `prefix`-{images-idx3,labels-idx1}-ubyte."""
    images = read_images(require(folder, f"{prefix}-images-idx3-ubyte"))
    path = require(folder, f"{prefix}-labels-idx1-ubyte")
    labels = read_labels(path, classes, first)
    if len(labels) != len(images):
        raise InputError(f"{path} must hold {len(images)} labels, one per image; got {len(labels)}")
    return images, labels


def read_letters_split(folder: Path, prefix: str) -> tuple[Images, Labels]:
    """EMNIST-Letters: like `read_split`, but images lie on their side and labels are 1..26."""
    images, labels = read_split(folder, prefix, classes=26, first=1)
    return images.swapaxes(2, 3), labels


def read_images(path: Path) -> Images:
    """Images of shape [n, 1, rows, columns]."""
    return _read(path, rank=3)[:, None]


def read_labels(path: Path, classes: int, first: int = 0) -> Labels:
    """Labels 0..classes-1, shape [n]; `first` is the file's smallest label (EMNIST-Letters: 1)."""
    return check_labels(path, _read(path, rank=1).astype(np.int64), classes, first)


def _read(path: Path, rank: int) -> Images:
    content = read_content(path)
    magic = bytes([0, 0, _UNSIGNED_BYTES, rank])
    if content[:4] != magic:
        raise InputError(f"{path} must begin with the IDX magic 0x{magic.hex()}; got 0x{content[:4].hex()}")
    start = 4 + 4 * rank
    if len(content) < start:
        raise InputError(f"{path} must have an IDX header of {start} bytes; got {len(content)}")
    shape = [int(size) for size in np.frombuffer(content, ">u4", rank, offset=4)]
    if len(content) != start + math.prod(shape):
        raise InputError(f"{path} must have {start + math.prod(shape)} bytes for shape {shape}; got {len(content)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
