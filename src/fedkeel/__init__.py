"""fedkeel: federated learning across unequal clients."""

from fedkeel.api import Result, run
from fedkeel.data.federated import FederatedData
from fedkeel.errors import DivergenceError, FedkeelError, InputError
from fedkeel.experiment import Experiment

__all__ = ["DivergenceError", "Experiment", "FederatedData", "FedkeelError", "InputError", "Result", "run"]
__version__ = "0.1.0"
