"""A partition that the user wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, model_validator

from fedkeel import streams
from fedkeel.config import usercode
from fedkeel.data.partition.assignment import Assignment
from fedkeel.data.partition.base import Partition, check
from fedkeel.errors import InputError, shown

FIELD = "partition.kind"
GIVEN = ("labels", "clients", "rng")


class Own(Partition):
    """A function `deal(labels, clients, rng, **options)` that returns one array of sample numbers per client.

    Samples are numbered from 0 in the order of `labels`. Each is dealt once or not at all; a client may be empty. `rng`
    is a numpy generator that depends on the experiment's seed alone. The other settings of the section are its options.
    """

    model_config = ConfigDict(extra="allow")

    kind: str = "module:function"

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Options that are not given get the function's defaults."""
        if not (isinstance(values, dict) and usercode.is_own(values.get("kind"))):
            return values
        kind, options = values["kind"], {str(key): value for key, value in values.items() if key != "kind"}
        function = usercode.find(kind, FIELD)
        return {"kind": kind, **usercode.completed(function, kind, FIELD, GIVEN, options)}

    def assign(self, labels: NDArray[np.int64], clients: int, seed: int) -> Assignment:
        """As the function returns it, checked; a client's samples come in ascending order."""
        check(labels, clients)
        function, rng = usercode.find(self.kind, FIELD), streams.generator(seed, "partition")
        options = self.model_extra or {}
        dealt = usercode.guarded(function, self.kind, FIELD, labels.copy(), clients, rng, **options)
        return _checked(dealt, f"{FIELD}: {self.kind}", len(labels), clients)


def _checked(dealt: Any, what: str, samples: int, clients: int) -> Assignment:
    """What a function returned, if it is a partition of so many samples."""
    try:
        parts = [np.asarray(part) for part in dealt]
    except Exception as error:
        raise InputError(f"{what} must return one array of sample numbers per client; got {shown(dealt)}") from error
    if len(parts) != clients:
        raise InputError(f"{what} must return {clients} arrays, one per client; got {len(parts)}")
    for client, part in enumerate(parts):
        if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
            raise InputError(
                f"{what} must return sample numbers; got {part.dtype} of shape {list(part.shape)} for client {client}"
            )
        if len(part) and not (part.min() >= 0 and part.max() < samples):
            wrong = part.min() if part.min() < 0 else part.max()
            raise InputError(f"{what} must deal out samples 0 to {samples - 1}; got {wrong} for client {client}")
    sizes = np.array([len(part) for part in parts])
    indices = np.concatenate([np.sort(part).astype(np.int64) for part in parts])
    if not len(indices):
        raise InputError(f"{what} must deal out at least one sample; got none")
    counts = np.bincount(indices, minlength=samples)
    if counts.max() > 1:
        twice = int(counts.argmax())
        whom = np.repeat(np.arange(clients), sizes)[indices == twice].tolist()
        raise InputError(f"{what} must deal out each sample once; got {twice} for clients {whom[0]} and {whom[1]}")
    return Assignment(indices, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
