"""fedkeel: federated learning across unequal clients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.api import Result, resume, run
    from fedkeel.config.experiment import Experiment
    from fedkeel.data.federated import FederatedData
    from fedkeel.errors import DivergenceError, FedkeelError, InputError, StoppedError
    from fedkeel.record.follow import follow
    from fedkeel.record.rows import Arrival, Evaluation, RoundEnd
    from fedkeel.runner.sinks import Sink
    from fedkeel.runner.stopping import Stop

__all__ = [
    "Arrival", "DivergenceError", "Evaluation", "Experiment", "FederatedData", "FedkeelError", "InputError", "Result",
    "RoundEnd", "Sink", "Stop", "StoppedError", "follow", "resume", "run",
]  # fmt: skip
__version__ = "0.1.0"

_HOMES = {
    "api": ("Result", "resume", "run"),
    "data.federated": ("FederatedData",),
    "config.experiment": ("Experiment",),
    "record.follow": ("follow",),
    "runner.sinks": ("Sink",),
    "runner.stopping": ("Stop",),
    "record.rows": ("Arrival", "Evaluation", "RoundEnd"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for, so that `fedkeel --help` need not wait for PyTorch."""
    if name in __all__:
        return getattr(import_module(f"fedkeel.{_HOME.get(name, 'errors')}"), name)
    raise AttributeError(f"module 'fedkeel' has no attribute {name!r}")
