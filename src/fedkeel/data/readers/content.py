"""What all readers share: a file's content, gzipped or not, and the checks of labels."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkeel.config.files import open_file, reason
from fedkeel.errors import InputError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def locate(folder: Path, name: str) -> Path | None:
    """The file or folder called `name`, or the file `name.gz`, whichever is there."""
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if os.path.exists(path)), None)  # what cannot be looked at is not there


def require(folder: Path, name: str) -> Path:
    """Like `locate`, but absence is an error."""
    path = locate(folder, name)
    if path is None:
        raise InputError(f"{folder / name} was not found, neither as it is nor as {name}.gz; put it there")
    return path


def read_content(path: Path) -> bytes:
    """A file's bytes, unpacked if they are gzipped, which their first two bytes tell, not the name."""
    try:
        with open_file(path) as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason(error)})") from error
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path} must be a whole gzip file; got a damaged one ({error})") from error


def check_labels(path: Path, labels: Labels, classes: int, first: int = 0) -> Labels:
    """The labels moved to 0..classes-1, refused unless all are in first..first+classes-1."""
    wrong = np.flatnonzero((labels < first) | (labels >= first + classes))
    if wrong.size:
        raise InputError(
            f"{path} must hold labels from {first} to {first + classes - 1}; got {labels[wrong[0]]} at index {wrong[0]}"
        )
    return labels - first
