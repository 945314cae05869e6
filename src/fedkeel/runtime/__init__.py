"""The server's loop over events."""

from fedkeel.runtime.simulation import Simulation
from fedkeel.runtime.progress import Arrival, Evaluation, RoundEnd

__all__ = ["Arrival", "Evaluation", "RoundEnd", "Simulation"]
