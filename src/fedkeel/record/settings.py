"""When the state of a run is written down."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedkeel.config.section import Section


class CheckpointSettings(Section):
    """When the state of a run is written down, beside its end; always after a whole round."""

    seconds: Annotated[float, Field(ge=0, le=1e9)] | None = 60.0
    """Whenever so many real ones have passed since the last time; null: never because of the time."""
    rounds: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    """After so many rounds, too."""
