"""What is done to uploads on their way."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fedkeel.errors import InputError, shown
from fedkeel.wire.cast import Cast
from fedkeel.wire.clip import Clip
from fedkeel.wire.transform import Transform


def _named(value: Any) -> Any:
    """`cast` is short for `{kind: cast}`."""
    if isinstance(value, dict) and "kind" not in value:
        raise InputError(f"wire: {shown(value)} has no kind; add kind: cast or kind: clip")
    return {"kind": value} if isinstance(value, str) else value


TRANSFORMS: tuple[type[Transform], ...] = (Cast, Clip)
AnyTransform = Annotated[Annotated[Cast | Clip, Field(discriminator="kind")], BeforeValidator(_named)]
WireSettings = tuple[AnyTransform, ...]
"""Transforms, in the order in which clients apply them."""
