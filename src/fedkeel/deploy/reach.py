"""Whether a site's node reaches the server, from what the node writes and how long it is silent."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic

from fedkeel.world.remote.lines import AGAIN, CONNECTED

PATIENCE = 8.0
"""Seconds that a server may be away before it is told: it may be starting, or busy."""
SILENCE = 12.0
"""Seconds after the node's start without any word of it."""
_LOST = re.compile(r"Connection attempt failed, retrying")
"""What Flower's node writes when it does not reach the SuperLink."""
_BACK = re.compile(r"Connection successful after|the SuperLink answers again")
"""What Flower's node or ours writes when it reaches it again."""
_AWAY = re.compile(r"the SuperLink cannot be reached: (.*)")
_TIME = re.compile(r"^[0-9][0-9: ,-]+ ")


class Reach:
    """Makes sentences for the site's people."""

    def __init__(self, site: str, address: str, clock: Callable[[], float] = monotonic) -> None:
        self._site, self._address, self._clock = site, address, clock
        self._lost: float | None = None
        """Since when the server is away, or a node that was started has said nothing."""
        self._patience = PATIENCE
        self._told = self._taken = self._over = False
        """Whether it was told that the server is away; whether the server has taken the node since its start; whether
        the run is complete, so that the server may end."""

    def started(self) -> None:
        """The node was started, or started again."""
        self._lost, self._patience, self._taken = self._clock(), SILENCE, False

    def heard(self, line: str) -> str | None:
        """What is to be told when the node has written this line."""
        if CONNECTED.search(line):
            self._taken = True
            return self._there(f"{self._site} is connected with {self._address}; Ctrl-C stops it")
        if _BACK.search(line) and self._taken:
            told = self._told
            sentence = self._there(f"{self._site} is connected with {self._address} again")
            return sentence if told else None
        if _LOST.search(line):
            if self._lost is None:
                self._lost, self._patience = self._clock(), PATIENCE
        elif line.endswith(AGAIN):  # our own node is patient itself
            self._lost, self._told = None, True
            why = _TIME.sub("", line)
            away = _AWAY.match(why.removesuffix(AGAIN))
            return why if away is None else self._away(f" ({away[1]})")
        return None

    def completed(self) -> None:
        """The run is complete."""
        self._over = True

    def _there(self, sentence: str) -> str:
        self._lost, self._told, self._over = None, False, False
        return sentence

    def waited(self) -> str | None:
        """What is to be told because nothing has come for a while."""
        if self._lost is None or self._told or self._clock() - self._lost < self._patience:
            return None
        self._told = True
        return self._away()

    def _away(self, why: str = "") -> str:
        if self._over:
            return f"the server at {self._address} has ended; {self._site} waits for the next one"
        return (
            f"the server cannot be reached at {self._address}{why}; check --superlink, whether the server runs, and "
            f"whether a firewall lets this machine through{AGAIN}"
        )
