"""Uploads in numbers of two bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.methods.types import Message
from fedkeel.wire.transform import Size, Transform, Upload


class Cast(Transform):
    """Rounds the update, and messages of the same type as the weights, to numbers of two bytes.

    float16 has eleven bits of precision and ends at 65504: what lies beyond becomes infinite and is refused. bfloat16
    has eight bits and the range of float32.
    """

    kind: Literal["cast"] = "cast"
    """The name of the transform."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """The type that uploads are rounded to. `float16` is more precise, and `bfloat16` has the range of float32."""
    feedback: bool = False
    """Each client adds what rounding removed from its last update to its next one (error feedback)."""

    def initial(self, w: Tensor) -> Message:
        """Rounding has taken nothing yet."""
        return {"rest": torch.zeros_like(w)} if self.feedback else {}

    def encode(self, upload: Upload, kept: Message, keys: NDArray[np.uint64]) -> tuple[Upload, Message]:
        """The residual is what the server will not read; an upload that it refuses leaves none."""
        if not self.feedback:
            return upload.to(getattr(torch, self.dtype)), {}
        whole = replace(upload, update=upload.update + kept["rest"])
        sent = whole.to(getattr(torch, self.dtype))
        rest = whole.update - sent.update.to(whole.update.dtype)
        read = [rest, *(tensor.reshape(len(tensor), -1) for tensor in sent.messages.values())]
        finite = torch.stack([each.isfinite().all(-1) for each in read]).all(0)[:, None]
        return sent, {"rest": torch.where(finite, rest, torch.zeros_like(rest))}

    def decode(self, upload: Upload, start: Tensor) -> Upload:
        """Back in the weights' type."""
        return upload.to(start.dtype)

    def size(self, before: Size, update: bool) -> Size:
        """Two bytes for each number."""
        return replace(before, width=2)
