"""CIFAR-10 and CIFAR-100, in both published forms: binary records and Python pickles."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.readers.content import Images, Labels, check_labels, read_content
from fedkeel.errors import InputError, shown, words

IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32


def read_binary(path: Path, classes: int, label_bytes: int) -> tuple[Images, Labels]:
    """Images [n, 3, 32, 32] and labels [n] of records of `label_bytes` labels and one image.

    CIFAR-10 has one label byte; CIFAR-100 has two, of which the second is the fine label that is returned.
    """
    content = read_content(path)
    record = label_bytes + IMAGE_BYTES
    if not content or len(content) % record:
        raise InputError(f"{path} must hold records of {record} bytes each; got {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = check_labels(path, records[:, label_bytes - 1].astype(np.int64), classes)
    return records[:, label_bytes:].reshape(-1, *IMAGE_SHAPE), labels


def read_pickle(path: Path, classes: int, label_key: str) -> tuple[Images, Labels]:
    """Images [n, 3, 32, 32] and labels [n] of a pickled batch; nothing in the file is executed.

    `label_key` is `labels` in CIFAR-10 and `fine_labels` in CIFAR-100.
    """
    batch = _unpickle(path)
    images = _entry(path, batch, "data", _Array).pixels
    labels = _labels(path, _entry(path, batch, label_key, list))
    if images.ndim != 2 or images.shape[1] != IMAGE_BYTES:
        raise InputError(f"{path} must hold data of shape [n, {IMAGE_BYTES}]; got {list(images.shape)}")
    if labels.dtype.kind != "i" or labels.shape != images.shape[:1]:
        raise InputError(f"{path} must hold {len(images)} integers as {label_key}; got {list(labels.shape)}")
    return images.reshape(-1, *IMAGE_SHAPE), check_labels(path, labels.astype(np.int64), classes)


def _labels(path: Path, values: list[Any]) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must hold a list of labels ({words(error)})") from error


class _Array:
    """Stands in for numpy's array and its constructor, and accepts plain unsigned bytes only."""

    pixels: Images

    def __init__(self, *_: object) -> None:
        self.pixels = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[object, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _, shape, dtype, by_column, data = state
        if not isinstance(dtype, _Dtype):
            raise pickle.UnpicklingError("an array without a dtype")
        self.pixels = np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_column else "C")


class _Dtype:
    """Stands in for numpy's dtype: unsigned bytes, whatever else its state says."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"dtype {code!r} instead of u1")

    def __setstate__(self, state: object) -> None:
        pass


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Refuses every global but numpy's array reconstruction: pickles of unknown origin can run code."""

    def find_class(self, module: str, name: str) -> type:
        """The stand-in for a global that the file names."""
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed") from None


def _unpickle(path: Path) -> dict[Any, Any]:
    content = read_content(path)
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{path} must hold a pickled CIFAR batch ({words(error)})") from error
    if not isinstance(batch, dict):
        raise InputError(f"{path} must hold a pickled dict; got {type(batch).__name__}")
    return batch


def _entry(path: Path, batch: dict[Any, Any], key: str, kind: type[Any]) -> Any:
    """An entry of a batch, whose keys are bytes if Python 2 wrote it (as it did the published ones)."""
    value = batch.get(key.encode(), batch.get(key))
    if not isinstance(value, kind):
        raise InputError(f"{path} must hold an entry {key!r}; got {shown(list(batch))}")
    return value
