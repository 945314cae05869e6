"""NumPy files: `.npz` archives with x and y, and `.npy` files of samples and targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.config.files import open_file, reason
from fedkeel.data.files import kinds
from fedkeel.data.files.build import OPEN, TEST, VALIDATION, Gathered
from fedkeel.data.files.features import Array, Columns
from fedkeel.data.files.missing import complete
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.table import column_of
from fedkeel.data.files.targets import classes_of
from fedkeel.errors import InputError, label, words

_PARTS = {"": OPEN, "_test": TEST, "_validation": VALIDATION}
Arrays = dict[str, NDArray[Any]]


def read(path: Path, settings: FileSettings, name: str) -> Gathered:
    """x, y and perhaps client, also with _test and _validation, from an archive; or from one file each."""
    if path.name.lower().endswith(".npz"):
        return gather(_archive(path), settings, label(str(path)), name)
    if not settings.target or len(settings.target) > 1:
        raise InputError("dataset.target must name the .npy file of the targets, such as dataset.target=y.npy")
    held = {"x": _single(path, "dataset.name"), "y": _single(Path(settings.target[0]), "dataset.target")}
    if settings.client is not None:
        held["client"] = _single(Path(settings.client), "dataset.client")
    return gather(held, settings, label(str(path)), name)


def gather(held: Arrays, settings: FileSettings, where: str, name: str) -> Gathered:
    """Arrays by their names, put together: rows for training, for a test and for validation."""
    parts = {suffix: part for suffix, part in _PARTS.items() if f"x{suffix}" in held or f"y{suffix}" in held}
    for suffix in ("", *parts):
        for which in (f"x{suffix}", f"y{suffix}"):
            if which not in held:
                raise InputError(f"{where} has no array {which!r}; it has {', '.join(map(label, held)) or 'none'}")
        x, y = held[f"x{suffix}"], held[f"y{suffix}"]
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise InputError(f"{where}: x{suffix} has {_length(x)} samples, but y{suffix} has {_length(y)}")
    try:
        x, y = (np.concatenate([held[f"{which}{suffix}"] for suffix in parts]) for which in "xy")
    except ValueError as error:
        raise InputError(f"{where}: training and test arrays have different shapes ({words(error)})") from error
    part = np.repeat([*parts.values()], [len(held[f"x{suffix}"]) for suffix in parts]).astype(np.int8)
    targets, classes = _targets(y, settings, where)
    return from_array(x, targets, part, _whose(held, [*parts], where), classes, settings, name)


def from_array(
    x: NDArray[Any],
    y: NDArray[Any],
    part: NDArray[np.int8],
    whose: Sequence[str] | None,
    classes: tuple[str, ...] | None,
    settings: FileSettings,
    name: str,
) -> Gathered:
    """Samples in one array: a table of numbers if it has two axes, unless it holds token ids."""
    if x.dtype.kind not in "biuf":
        raise InputError(f"{label(name)}: samples must be numbers; got {x.dtype}")
    if x.ndim != 2 or settings.vocabulary is not None:
        return Gathered(Array(x if x.ndim > 1 else x[:, None]), y, part, whose, classes, name)
    columns = Columns.of_matrix(x)
    gathered = Gathered(columns, y, part, whose, classes, name)
    return gathered.take(complete(columns.lacking(), (), part, settings))


def _targets(y: NDArray[Any], settings: FileSettings, where: str) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Classes by number or by name, or numbers."""
    whole = y.dtype.kind in "biu" and settings.target_type != "number"
    named = whole and settings.classes is not None
    if y.ndim == 1 and (named or y.dtype.kind in "USO"):
        return classes_of(column_of("y", y).words(), settings, "y")
    if y.dtype.kind not in "biuf":
        raise InputError(f"{where}: y must hold numbers or names of classes; got {y.dtype}")
    if named and settings.classes is not None and y.size and y.max() >= len(settings.classes):
        raise InputError(f"dataset.classes must name every class of y; got {len(settings.classes)} for up to {y.max()}")
    return y.astype(np.int64 if whole else np.float32), settings.classes if named else None


def _whose(held: Arrays, suffixes: list[str], where: str) -> list[str] | None:
    """Client names by row; test rows have one only if the file says so."""
    if "client" not in held:
        return None
    whose: list[str] = []
    for suffix in suffixes:
        rows, names = len(held[f"x{suffix}"]), held.get(f"client{suffix}")
        if names is not None and names.shape != (rows,):
            raise InputError(f"{where}: client{suffix} must hold one name per sample; got shape {list(names.shape)}")
        whose += [""] * rows if names is None else [word or "" for word in column_of("client", names).names()]
    return whose


def _archive(path: Path) -> Arrays:
    try:
        with open_file(path) as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except OSError as error:
        raise InputError(f"dataset.name: {label(str(path))} cannot be read ({reason(error)})") from error
    except Exception as error:  # a damaged archive can fail in any way
        raise InputError(f"{label(str(path))} is not an .npz archive of numbers ({words(error)})") from error


def _single(path: Path, field: str) -> NDArray[Any]:
    (path,) = kinds.found(str(path), field)[:1]
    try:
        with open_file(path) as file:
            found = np.load(file, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{field}: {label(str(path))} cannot be read ({reason(error)})") from error
    except Exception as error:
        raise InputError(f"{field}: {label(str(path))} is not an .npy file of numbers ({words(error)})") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"{field}: {label(str(path))} must be an .npy file; got an archive")
    return found


def _length(array: NDArray[Any]) -> int:
    return len(array) if array.ndim else 0
