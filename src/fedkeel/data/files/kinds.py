"""Which names of data sets are files, and of what kind; what is told from the spelling alone."""

from __future__ import annotations

import glob
from pathlib import Path

from fedkeel.errors import InputError, label

HF = "hf:"
"""Begins the name of a Hugging Face data set."""
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
ARRAYS = (".npz", ".npy")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
HOW = "a file or a glob (.csv, .parquet, .npz, .npy), a folder with a slash such as ./silos, or hf:NAME"


def kind(name: str) -> str | None:
    """`table`, `arrays`, `folder` or `hf`; None for a known data set, or for the user's code."""
    lower = name.lower()
    if name.startswith(HF):
        return "hf"
    if lower.endswith((*CSV, *PARQUET)):
        return "table"
    if lower.endswith(ARRAYS):
        return "arrays"
    return "folder" if "/" in name and ":" not in name else None


def short(name: str) -> str:
    """What data is called in figures and in the names of folders: a file without its folder and ending."""
    if kind(name) is None:
        return name
    parts = [part for part in name.removeprefix(HF).split("/") if part not in ("", ".", "..")]
    last = parts[-1] if parts else "data"
    if any(sign in last for sign in "*?[") and len(parts) > 1:
        last = parts[-2]
    for ending in (*CSV[::-1], *PARQUET, *ARRAYS):
        last = last[: -len(ending)] if last.lower().endswith(ending) and len(last) > len(ending) else last
    return last.translate(str.maketrans("*?[]", "____"))


def found(name: str, field: str = "dataset.name") -> list[Path]:
    """The files that a path, a glob or a folder of tables names, in the order of their names."""
    path = Path(name).expanduser()
    if path.is_dir():
        files = [each for each in path.iterdir() if each.name.lower().endswith((*CSV, *PARQUET))]
    elif path.exists():
        files = [path]
    else:
        files = [Path(each) for each in glob.glob(str(path), recursive=True)]
    if not files:
        where = "" if path.is_absolute() else f" below {label(str(Path.cwd()))}"
        raise InputError(f"{field}: there is no file {label(name)}{where}; give the path of one that exists")
    return sorted(files)
