"""Lines in the logs of a site and of the server that other programs look for."""

from __future__ import annotations

import re

OURS = "fedkeel: "
"""Begins what a silo or the server function tells its user."""
COMPLETE = "the run is complete"
"""Begins what a silo tells when the server has said so."""
READY = "ready"
"""What a silo writes when it takes messages."""
AGAIN = "; trying again"
"""Ends what a node writes about a failure that it does not give up for."""
GOOD = re.compile(
    r"the server is up$|the server listens on |waiting for [\d,]+ |\S+ is (?:here|back), \d+ samples$"
    r"|\S+ is connected; |.* goes on after round \d+$"
)
"""What the server tells while all is well; a command that is to be quiet does not print it."""
CONNECTED = re.compile(r"(?:SuperNode ID:|connected as node) (\d+)")
"""What Flower's node or ours writes when the SuperLink has taken it, with its number."""
