"""What is done to uploads on their way."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fedkeel.wire.cast import Cast
from fedkeel.wire.clip import Clip


def _named(value: Any) -> Any:
    """`cast` is short for `{kind: cast}`."""
    return {"kind": value} if isinstance(value, str) else value


AnyTransform = Annotated[Annotated[Cast | Clip, Field(discriminator="kind")], BeforeValidator(_named)]
WireSettings = tuple[AnyTransform, ...]
"""Transforms, in the order in which clients apply them."""
