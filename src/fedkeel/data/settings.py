"""Which data."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedkeel.config.section import Count, Section
from fedkeel.data import datasets


class DatasetSettings(Section):
    """Which data: a known data set, or `module:function` that returns a `Dataset` or a `FederatedData`."""

    name: str = "fashion-mnist-mini"
    train_limit: Count | None = None
    """Use only so many training samples, drawn at random."""
    test_limit: Count | None = None
    """Use only so many test samples, drawn at random."""
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share of its own training rows that each client holds out for validation. Targets, early stopping, the best
    model and sweeps then look at these rows, not at the test set."""
    normalise: datasets.Scaling = "standard"
    """Images. `standard`: scaled to 0..1, then (x - mean) / std per channel. `unit`: scaled to 0..1. `none`: 0..255, as
    the files have them. Token ids and the user's own data stay as they are."""
    augment: Literal["none", "crop-flip"] = "none"
    """Random crop after padding by 4, and horizontal flip, of training images."""
    resize: Annotated[int, Field(gt=0, le=2048)] | None = None
    """Scale images to this height and width, batch by batch."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if ":" in name else datasets.canonical(name)

    @model_validator(mode="after")
    def _scalable(self) -> Self:
        datasets.check_scaling(self.name, self.normalise)
        return self
