"""Uploads with a bound on how far a client may move the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fedkeel.methods.types import Message
from fedkeel.wire.transform import Transform, Upload


class Clip(Transform):
    """Scales an update whose Euclidean norm is above `norm` down to it; messages are left alone."""

    kind: Literal["clip"] = "clip"
    """The name of the transform."""
    needs_weights = True
    norm: Annotated[float, Field(gt=0, le=1e38)]
    """The largest Euclidean norm of an update; longer updates are scaled down to it."""

    def encode(self, upload: Upload, kept: Message, keys: NDArray[np.uint64]) -> tuple[Upload, Message]:
        """Scale each client's update by itself."""
        norms = torch.linalg.vector_norm(upload.update.double(), dim=-1, keepdim=True)
        factor = (self.norm / norms.clamp(min=self.norm)).to(upload.update.dtype)
        return replace(upload, update=upload.update * factor), {}
