"""The server's loop over events."""

from fedkeel.record.rows import Arrival, Arrivals, Evaluation, RoundEnd
from fedkeel.runtime.simulation import Simulation

__all__ = ["Arrival", "Arrivals", "Evaluation", "RoundEnd", "Simulation"]
