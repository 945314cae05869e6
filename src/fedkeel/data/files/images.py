"""Folders of images: `root/class/*.png`, or `root/client/class/*.png`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files import kinds
from fedkeel.data.files.build import OPEN, TEST, VALIDATION, Gathered
from fedkeel.data.files.features import Array
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.targets import classes_of
from fedkeel.errors import InputError, label, words

FOLDER = "folder"
"""As `dataset.client`: every folder below the root is a client's."""
_PARTS = {"train": OPEN, "test": TEST, "validation": VALIDATION, "val": VALIDATION}
Pixels = NDArray[np.uint8]
BILINEAR = 2
"""Pillow's `Resampling.BILINEAR`, without an import of Pillow."""


def read(root: Path, settings: FileSettings, name: str) -> Gathered:
    """All images below a folder, in the order of their names; their classes are their folders.

    Folders called train, test and val right below the root, and no others, are what they say.
    """
    if settings.client not in (None, FOLDER):
        raise InputError(f"dataset.client must be {FOLDER!r} for a folder of images; got {settings.client!r}")
    by_client = settings.client == FOLDER
    roots = [(root, OPEN)]
    if {path.name for path in _folders(root)} <= {*_PARTS} and (root / "train").is_dir():
        roots = [(path, _PARTS[path.name]) for path in _folders(root)]
    paths, part = [], []
    for folder, which in roots:
        found = _images(folder, "*/*/*" if by_client else "*/*")
        paths += found
        part += [which] * len(found)
    if not paths:
        form = "root/client/class/image.png" if by_client else "root/class/image.png"
        raise InputError(f"{label(str(root))} has no images of the form {form}; {_form_hint(root, by_client)}")
    labels, classes = classes_of([path.parent.name for path in paths], settings, "the folders")
    whose = [path.parents[1].name for path in paths] if by_client else None
    x = np.stack(_read_all(paths, settings))
    return Gathered(Array(x), labels, np.array(part, np.int8), whose, classes, name)


def pixels(image: Any, colour: str, size: int | None) -> Pixels:
    """One Pillow image as [channels, height, width]."""
    shown_as = image.convert(colour)
    if size is not None and shown_as.size != (size, size):
        shown_as = shown_as.resize((size, size), BILINEAR)
    found = np.asarray(shown_as, np.uint8)
    return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)


def colour_of(image: Any, settings: FileSettings) -> str:
    """How all images are read: as asked for, or as the first one is."""
    return settings.colour or ("L" if image.mode in ("1", "L", "I", "I;16", "F", "LA") else "RGB")


def same_size(images: Sequence[Pixels], names: Sequence[str]) -> None:
    """Refuse images of different sizes."""
    first = images[0].shape[1:]
    for image, name in zip(images, names, strict=True):
        if image.shape[1:] != first:
            raise InputError(
                f"dataset.resize must be set, as images have different sizes: {label(names[0])} has "
                f"{first[1]} x {first[0]} pixels, {label(name)} has {image.shape[2]} x {image.shape[1]}"
            )


def _read_all(paths: Sequence[Path], settings: FileSettings) -> list[Pixels]:
    from PIL import Image

    found: list[Pixels] = []
    colour: str | None = settings.colour
    for path in paths:
        try:
            with Image.open(path) as image:
                colour = colour or colour_of(image, settings)
                found.append(pixels(image, colour, settings.resize))
        except Exception as error:  # a damaged image can fail in any way
            raise InputError(f"{label(str(path))} is not an image that can be read ({words(error)})") from error
    same_size(found, [str(path) for path in paths])
    return found


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.name.lower().endswith(kinds.IMAGES))


def _form_hint(root: Path, by_client: bool) -> str:
    if by_client and _images(root, "*/*"):
        return "remove dataset.client=folder, as the folders are classes"
    if not by_client and _images(root, "*/*/*"):
        return "set dataset.client=folder if the first folders are clients"
    return f"put images ({', '.join(kinds.IMAGES[:3])}, ...) into one folder per class"
