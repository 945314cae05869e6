"""fedkeel: federated learning across unequal clients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.api import Result, run
    from fedkeel.data.federated import FederatedData
    from fedkeel.errors import DivergenceError, FedkeelError, InputError
    from fedkeel.experiment import Experiment

__all__ = ["DivergenceError", "Experiment", "FederatedData", "FedkeelError", "InputError", "Result", "run"]
__version__ = "0.1.0"

_HOMES = {"api": ("Result", "run"), "data.federated": ("FederatedData",), "experiment": ("Experiment",)}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for, so that `fedkeel --help` need not wait for PyTorch."""
    if name in __all__:
        return getattr(import_module(f"fedkeel.{_HOME.get(name, 'errors')}"), name)
    raise AttributeError(f"module 'fedkeel' has no attribute {name!r}")
