"""Objects on their way to another machine: bytes, and the memory of their tensors and arrays beside them.

Ray keeps arrays in a store that all processes of a machine can read, so that memory is there once per machine.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.config import usercode

Frozen = tuple[bytes, list[NDArray[np.uint8]]]
_UNKNOWN_TO_NUMPY = {torch.bfloat16}


def freeze(value: object) -> Frozen:
    """An object whose classes are known on the other side."""
    file, memory = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback=memory.append).dump(value)
    return file.getvalue(), [np.frombuffer(each.raw(), dtype=np.uint8) for each in memory]


def thaw(frozen: Frozen) -> Any:
    """The object; what it holds must not be changed in place."""
    packed, memory = frozen
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return pickle.loads(packed, buffers=memory)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.dtype in _UNKNOWN_TO_NUMPY:
            return NotImplemented
        return torch.from_numpy, (value.detach().cpu().contiguous().numpy(),)


@contextmanager
def by_value(cloudpickle: Any) -> Iterator[None]:
    """What is pickled meanwhile takes the user's own modules along: other machines do not have their files."""
    known, own = cloudpickle.list_registry_pickle_by_value(), list[Any]()
    try:
        for module in usercode.own_modules():
            if module.__name__ not in known:
                cloudpickle.register_pickle_by_value(module)
                own.append(module)
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
