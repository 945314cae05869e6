"""fedkeel: federated learning across unequal clients."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.api import Result, resume, run
    from fedkeel.config.experiment import Experiment
    from fedkeel.data.federated import FederatedData
    from fedkeel.errors import DivergenceError, FedkeelError, InputError, StoppedError, TimeLimitError
    from fedkeel.methods.client import ClientRule, Merge
    from fedkeel.methods.course import Course, Trail
    from fedkeel.methods.fedavg import Average
    from fedkeel.methods.job import Job, Sums, Updates
    from fedkeel.methods.oracle import Oracle
    from fedkeel.methods.registry import Method, method
    from fedkeel.methods.server import Answers, Brief, Cohort, Plan, Progress, Receipt, ServerRule, ServerState, View
    from fedkeel.methods.types import Message, Sends, Weighting
    from fedkeel.params import Layout
    from fedkeel.record.follow import follow
    from fedkeel.record.rows import Arrival, Evaluation, Refused, Round, RoundEnd, Unfinished
    from fedkeel.runner.sinks import Sink, SinkError, Start
    from fedkeel.runner.stopping import Stop

__all__ = [
    "Answers", "Arrival", "Average", "Brief", "ClientRule", "Cohort", "Course", "DivergenceError", "Evaluation",
    "Experiment", "FederatedData", "FedkeelError", "InputError", "Job", "Layout", "Merge", "Message", "Method",
    "Oracle", "Plan", "Progress", "Receipt", "Refused", "Result", "Round", "RoundEnd", "Sends", "ServerRule",
    "ServerState", "Sink", "SinkError", "Start", "Stop", "StoppedError", "Sums", "TimeLimitError", "Trail",
    "Unfinished", "Updates", "View", "Weighting", "follow", "method", "resume", "run",
]  # fmt: skip
__version__ = "0.1.0"

# Otherwise MKL's products of matrices also depend on where in memory these lie. It looks when it is first called.
os.environ.setdefault("MKL_CBWR", "AUTO")

_HOMES = {
    "api": ("Result", "resume", "run"),
    "data.federated": ("FederatedData",),
    "config.experiment": ("Experiment",),
    "methods.client": ("ClientRule", "Merge"),
    "methods.course": ("Course", "Trail"),
    "methods.fedavg": ("Average",),
    "methods.job": ("Job", "Sums", "Updates"),
    "methods.oracle": ("Oracle",),
    "methods.registry": ("Method", "method"),
    "methods.server": (
        "Answers", "Brief", "Cohort", "Plan", "Progress", "Receipt", "ServerRule", "ServerState", "View",
    ),
    "methods.types": ("Message", "Sends", "Weighting"),
    "params": ("Layout",),
    "record.follow": ("follow",),
    "record.rows": ("Arrival", "Evaluation", "Refused", "Round", "RoundEnd", "Unfinished"),
    "runner.sinks": ("Sink", "SinkError", "Start"),
    "runner.stopping": ("Stop",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for, so that `fedkeel --help` need not wait for PyTorch."""
    if name in __all__:
        return getattr(import_module(f"fedkeel.{_HOME.get(name, 'errors')}"), name)
    raise AttributeError(f"module 'fedkeel' has no attribute {name!r}")
