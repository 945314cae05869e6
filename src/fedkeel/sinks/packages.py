"""Packages that only a sink needs: imported when the sink is made, and not before."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from fedkeel.errors import InputError, words


def needed(sink: str, *modules: str) -> ModuleType:
    """Import these; returns the last one. `sink` is also the name of the extra that installs them."""
    found: ModuleType | None = None
    for module in modules:
        try:
            found = import_module(module)
        except ImportError as error:
            package = module.split(".")[0] if error.name is None else error.name.split(".")[0]
            raise InputError(
                f"sinks: {sink} needs the package {package}, which cannot be imported ({words(error)}); "
                f"install it with pip install 'fedkeel[{sink}]'"
            ) from error
    assert found is not None
    return found
