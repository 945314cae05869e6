"""When the state of a run is written down."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedkeel.config.section import Section


class CheckpointSettings(Section):
    """When the state of a run is written down, beside its end; always after a whole round."""

    seconds: Annotated[float, Field(ge=0, le=1e9)] | None = 60.0
    """Save a checkpoint after the round in which this many real seconds have passed since the last one. With null, time
    does not matter."""
    rounds: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    """Also save a checkpoint after every so many rounds."""
