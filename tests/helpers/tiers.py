"""Which cases of a test are in the fast tier, `make check`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(names: Iterable[str], *fast: str) -> list[Any]:
    """These names as parameters of a test, of which all but the fast ones are marked slow."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]
