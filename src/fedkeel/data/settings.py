"""Which data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import field_validator, model_validator

from fedkeel.config.section import Count
from fedkeel.data import datasets
from fedkeel.data.files import kinds
from fedkeel.data.files.settings import FileSettings, unused
from fedkeel.errors import InputError, label


class DatasetSettings(FileSettings):
    """Which data: a known data set, a file or folder, or `module:function` that returns `Dataset` or `FederatedData`.

    Settings from `target` to `colour` are for files.
    """

    name: str = "fashion-mnist-mini"
    """The data set: a name from `fedkeel list datasets`, a file (.csv, .parquet, .npz, .npy), a glob of them, a folder
    with a slash such as `./images`, `hf:NAME`, or `module:function` of your own loader."""
    train_limit: Count | None = None
    """Use only this many training samples, drawn at random. By default all are used."""
    test_limit: Count | None = None
    """Use only this many test samples, drawn at random. By default all are used."""
    augment: Literal["none", "crop-flip"] = "none"
    """How training images are varied. `crop-flip` pads each image by 4 pixels, crops it at random, and flips it
    horizontally half of the time."""

    @property
    def label(self) -> str:
        """What the data is called in figures and in the names of folders."""
        return kinds.short(self.name)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if kinds.kind(name) or ":" in name else datasets.canonical(name)

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        kind = kinds.kind(self.name)
        if not kind:
            datasets.check_scaling(self.name, self.normalise)
        if strange := unused(self, kind):
            needs = "data from a file" if not kind else "another kind of file"
            raise InputError(f"dataset.{strange} needs {needs}, which {label(self.name)} is not; remove it")
        for field in ("train_limit", "test_limit"):
            if kind and getattr(self, field) is not None:
                raise InputError(f"dataset.{field} needs a known data set; remove it, or shorten {label(self.name)}")
        return self
