"""The data that `dataset.name` names, where that is a file, a folder or a Hugging Face data set."""

from __future__ import annotations

from pathlib import Path

from fedkeel.data.files import arrays, hf, images, kinds, tables
from fedkeel.data.files.build import Gathered
from fedkeel.data.files.settings import FileSettings
from fedkeel.errors import InputError, label


def load(settings: FileSettings) -> Gathered:
    """Read whatever it is; its kind is told by the ending of its name, or by what a folder holds."""
    name, called = settings.name, kinds.short(settings.name)
    match kinds.kind(name):
        case "hf":
            test = hf.load(settings.test) if isinstance(settings.test, str) else None
            return hf.gather(hf.splits(hf.load(name.removeprefix(kinds.HF)), test), settings, called)
        case "arrays":
            paths = kinds.found(name)
            if len(paths) > 1:
                raise InputError(f"dataset.name must be one NumPy file; {label(name)} names {len(paths)}")
            return arrays.read(paths[0], settings, called)
        case "folder" if (root := Path(name).expanduser()).is_dir() and not holds_tables(root):
            return _folder(root, settings, called)
    return tables.read(kinds.found(name), settings, called)


def holds_tables(root: Path) -> bool:
    """Whether a folder has tables in it; otherwise it is one of images."""
    return any(path.name.lower().endswith((*kinds.CSV, *kinds.PARQUET)) for path in root.iterdir())


def _folder(root: Path, settings: FileSettings, called: str) -> Gathered:
    if (root / "dataset_info.json").exists() or (root / "dataset_dict.json").exists():
        raise InputError(f"dataset.name: {label(str(root))} is a Hugging Face data set; write hf:{label(str(root))}")
    return images.read(root, settings, called)
