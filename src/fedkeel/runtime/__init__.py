"""The server's loop over events."""

from fedkeel.local.orders import Order
from fedkeel.methods.server import ServerState
from fedkeel.runtime.flights import Begin, End, Flight, Request, Stray
from fedkeel.runtime.progress import Arrival, Arrivals, Evaluation, RoundEnd
from fedkeel.runtime.simulation import Simulation

CLASSES = (Begin, End, Flight, Order, Request, ServerState, Stray)
"""What the state of a simulation is made of, beside plain values and tensors."""

__all__ = ["CLASSES", "Arrival", "Arrivals", "Evaluation", "RoundEnd", "Simulation"]
