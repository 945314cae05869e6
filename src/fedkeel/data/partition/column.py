"""Clients as the data itself names them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedkeel.data.partition.assignment import Assignment
from fedkeel.data.partition.base import Partition
from fedkeel.errors import InputError


class Column(Partition):
    """Every client has the rows that bear its name: those of a column, a file or a folder (`dataset.client`)."""

    kind: Literal["column"] = "column"
    min_samples: int = Field(default=1, ge=1)
    """The fewest rows of a client, counted before any are held out for a test."""
    rare: Literal["drop", "merge"] = "drop"
    """What happens to clients with fewer rows: they are left out (`drop`) or become one client together (`merge`)."""

    def assign(self, labels: NDArray[np.int64], clients: int, seed: int) -> Assignment:
        """Refused: labels alone do not say whose a row is."""
        raise InputError(
            "partition.kind: 'column' needs data that names a client for each row, which this data does not; set "
            "dataset.client, or use iid, dirichlet, shards or classes"
        )
