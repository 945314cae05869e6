"""By what a run is known: its model, devices and data."""

from __future__ import annotations

from dataclasses import fields
from hashlib import sha256

import numpy as np

from fedkeel.data.federated import FederatedData
from fedkeel.params import Layout
from fedkeel.world.fleet.profile import Fleet

_SAMPLES = 1000


def digest(data: FederatedData, layout: Layout, fleet: Fleet) -> str:
    """A digest of the model's layout, of the devices and of the data.

    Of the data: who has which samples, all labels, and the values of a thousand samples.
    """
    found = sha256(repr((layout.parameters, layout.buffers)).encode())
    columns = [getattr(fleet, field.name) for field in fields(fleet)]
    devices = [column for column in columns if isinstance(column, np.ndarray)]
    for array in (data.assignment.indices, data.assignment.offsets, *devices):
        found.update(array.tobytes())
    for part in (data.train, data.test):
        some = part.x[:: max(1, len(part.x) // _SAMPLES)].cpu().numpy().tobytes()
        found.update(f"{tuple(part.x.shape)} {part.x.dtype}".encode())
        found.update(part.y.cpu().numpy().tobytes())
        found.update(some)
    return found.hexdigest()
