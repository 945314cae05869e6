"""Which model."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, model_validator

from fedkeel import models
from fedkeel.config.section import Section, named


class ModelSettings(Section):
    """Which model: one of the zoo with its options, or `module:function` that returns an `nn.Module`."""

    model_config = ConfigDict(extra="allow")

    name: str = "mlp-400"
    """The model: a name from `fedkeel list models`, or `module:function` that returns an `nn.Module`."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Options that are not given get the model's defaults."""
        name, given = named(values, cls.model_fields["name"].default)
        if name is None or ":" in name:
            return values
        return {"name": name, **models.complete(name, given)}

    @property
    def options(self) -> dict[str, Any]:
        """What goes to the model's factory beside the shape of the data."""
        return dict(self.model_extra or {})
