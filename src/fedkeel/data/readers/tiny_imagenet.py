"""Tiny-ImageNet's folders: train/<wnid>/images/*.JPEG, and val/images with val/val_annotations.txt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedkeel.data.readers.content import Images, Labels, read_content
from fedkeel.errors import InputError, label, shown, words

SIDE = 64


def class_names(folder: Path, classes: int) -> list[str]:
    """The WordNet ids below train/, sorted: a class's label is its place in this list."""
    names = sorted(path.name for path in (folder / "train").glob("*") if path.is_dir())
    if len(names) != classes:
        raise InputError(f"{folder / 'train'} must hold {classes} folders, one per class; got {len(names)}")
    return names


def read_train(folder: Path, classes: int) -> tuple[Images, Labels]:
    """Images [n, 3, 64, 64] and labels [n], class by class in order of file names."""
    paths: list[Path] = []
    counts = []
    for name in class_names(folder, classes):
        images = sorted((folder / "train" / name / "images").glob("*.JPEG"))
        if not images:
            raise InputError(f"{folder / 'train' / name / 'images'} must hold *.JPEG files; got none")
        paths += images
        counts.append(len(images))
    return _read_images(paths), np.repeat(np.arange(classes), counts)


def read_validation(folder: Path, classes: int) -> tuple[Images, Labels]:
    """Images [n, 3, 64, 64] and labels [n], in the order of val_annotations.txt."""
    labels = {name: label for label, name in enumerate(class_names(folder, classes))}
    annotations = folder / "val" / "val_annotations.txt"
    try:
        rows = [line.split("\t") for line in read_content(annotations).decode("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{annotations} must hold UTF-8 text ({error})") from error
    for number, row in enumerate(rows, start=1):
        if len(row) < 2 or row[1] not in labels:
            got = f"got {shown(row)} in line {number}"
            raise InputError(f"{annotations} must name a file and a class of train/ in each line; {got}")
    paths = [folder / "val" / "images" / row[0] for row in rows]
    return _read_images(paths), np.array([labels[row[1]] for row in rows], np.int64)


def _read_images(paths: Sequence[Path]) -> Images:
    images = np.empty((len(paths), 3, SIDE, SIDE), np.uint8)
    for index, path in enumerate(paths):
        images[index] = _read_image(path)
    return images


def _read_image(path: Path) -> Images:
    """One JPEG as [3, 64, 64]; the grey ones among them become RGB."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except Exception as error:  # a damaged image can fail in any way
        raise InputError(f"{label(str(path))} must be a JPEG image ({words(error)})") from error
    if pixels.shape != (SIDE, SIDE, 3):
        raise InputError(f"{path} must have {SIDE} x {SIDE} pixels; got {pixels.shape[1]} x {pixels.shape[0]}")
    return pixels.transpose(2, 0, 1)
