"""The server's loop over events."""

from fedkeel.runtime.progress import Arrival, Evaluation, RoundEnd
from fedkeel.runtime.simulation import Simulation

__all__ = ["Arrival", "Evaluation", "RoundEnd", "Simulation"]
