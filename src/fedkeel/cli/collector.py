"""Python's garbage collector, kept away from PyTorch's hundreds of thousands of objects.

They are made when it is imported, and stay until the process ends. Looking through them takes a tenth of a second, and
left to itself Python does so several times at the start and at the end of a command.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """No collections while modules are imported; later ones, that at the end among them, pass over what was made here.

    For modules that hold no open files and the like. Users' modules may: they are imported outside.
    """
    if "torch" in sys.modules:  # then whoever imported it decides
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
