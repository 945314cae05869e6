"""Which data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedkeel.config.section import Count, Section
from fedkeel.data import datasets


class DatasetSettings(Section):
    """Which data: a known data set, or `module:function` that returns a `Dataset` or a `FederatedData`."""

    name: str = "fashion-mnist-mini"
    train_limit: Count | None = None
    """Use only so many training samples, drawn at random."""
    test_limit: Count | None = None
    augment: Literal["none", "crop-flip"] = "none"
    """Random crop after padding by 4, and horizontal flip, of training images."""
    resize: Annotated[int, Field(gt=0, le=2048)] | None = None
    """Scale images to this height and width, batch by batch."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if ":" in name else datasets.canonical(name)
