"""Which data."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedkeel.config.section import Count, Section
from fedkeel.data import datasets


class DatasetSettings(Section):
    """Which data: a known data set, or `module:function` that returns a `Dataset` or a `FederatedData`."""

    name: str = "fashion-mnist-mini"
    """The data set: a name from `fedkeel list datasets`, or `module:function` of your own loader."""
    train_limit: Count | None = None
    """Use only this many training samples, drawn at random. By default all are used."""
    test_limit: Count | None = None
    """Use only this many test samples, drawn at random. By default all are used."""
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share of its own training rows that each client holds out for validation. Targets, early stopping, the best
    model and sweeps then look at these rows, not at the test set."""
    normalise: datasets.Scaling = "standard"
    """How the values of images are scaled. `standard` scales them to 0..1 and then to mean 0 and standard deviation 1
    per channel, `unit` scales them to 0..1, and `none` keeps 0..255. Token ids and your own data stay as they are."""
    augment: Literal["none", "crop-flip"] = "none"
    """How training images are varied. `crop-flip` pads each image by 4 pixels, crops it at random, and flips it
    horizontally half of the time."""
    resize: Annotated[int, Field(gt=0, le=2048)] | None = None
    """Scale images to this height and width in pixels, batch by batch."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if ":" in name else datasets.canonical(name)

    @model_validator(mode="after")
    def _scalable(self) -> Self:
        datasets.check_scaling(self.name, self.normalise)
        return self
