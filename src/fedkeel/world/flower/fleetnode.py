"""A node of our own: many messages at once, and no wait of seconds between them, as Flower's own node has.

It talks to the SuperLink as Flower's node does, but starts no ClientApp: each message goes to the silo, in a thread.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from flwr.app import Message

from fedkeel.errors import FedkeelError, InputError, words
from fedkeel.world.flower import again, fleetapi, parcel, siloline
from fedkeel.world.flower.failures import RefusedError
from fedkeel.world.flower.fleetapi import Fleet, Header
from fedkeel.world.flower.link import Link
from fedkeel.world.remote.envelope import EnvelopeError
from fedkeel.world.remote.lines import AGAIN

_LOG = logging.getLogger("fedkeel.node")
_LONGEST = 10.0
"""Seconds between two attempts at most."""
_REFUSED = 150.0
"""Seconds after which a node that was taken and is refused now gives up."""
_AT_FIRST = 15.0
"""The same for a node that was never taken: a server that starts needs seconds to learn its key. After a kill without a
goodbye, Flower refuses it for about 60; then it is started again."""
_PATIENCE = 5.0
"""Seconds of failures before anything is told of them."""
_SPURIOUS = 3
"""So many calls in a row must be refused before a node begins anew: a busy SuperLink refuses late ones."""
_SHARE, _RARELY = 2.0, 2.0
"""A look for messages is followed by a pause of so many times its own length, but of no more seconds than that: a busy
SuperLink has better things to do."""
_IDLE, _SELDOM = 0.02, 1.0
"""The pause is also this share of the time since the last message, but of no more seconds than that: where jobs take
minutes, a second does not matter, and one SuperLink answers all nodes."""
_PUSHES = 40
"""How often an answer is sent."""


class FleetNode:
    """Takes messages until it is stopped."""

    def __init__(self, fleet: Fleet, silo: str, poll: float = 0.1) -> None:
        self.stop = threading.Event()
        self._fleet, self._silo, self._poll = fleet, silo, poll
        self._active = self._taken = False
        self._failures = 0
        self._failing = 0.0
        """Since when."""
        self._told = False
        self._refused: float | None = None
        self._last = time.monotonic()
        """When a message came."""

    def run(self) -> None:
        """Until `stop` is set; raises RefusedError if the SuperLink does not want this node."""
        threading.Thread(target=self._live, daemon=True).start()
        try:
            while not self.stop.is_set():
                self._once()
        finally:
            self.stop.set()
            self._fleet.close()

    def _once(self) -> None:
        try:
            if not self._active:
                number = self._fleet.activate()
                self._active, self._taken, self._failures, self._told = True, True, 0, False
                _LOG.info("connected as node %d", number)
            begun = time.monotonic()
            header = self._fleet.receive()
            took = time.monotonic() - begun
        except ConnectionError as error:
            self._wait(error)
        except RefusedError as error:
            self._on_refusal(error)
        else:
            if self._told:
                _LOG.info("the SuperLink answers again")
            self._failures, self._told, self._refused = 0, False, None
            idle = time.monotonic() - self._last
            if header is None:
                self.stop.wait(max(self._poll, min(_SHARE * took, _RARELY), min(_IDLE * idle, _SELDOM)))
            else:
                self._last = time.monotonic()
                threading.Thread(target=self._handle, args=(header,), daemon=True).start()

    def _on_refusal(self, error: RefusedError) -> None:
        self._refused = self._refused or time.monotonic()
        if time.monotonic() - self._refused > (_REFUSED if self._taken else _AT_FIRST):
            raise error
        if self._failures + 1 >= _SPURIOUS:
            self._active = False
        self._wait(error)

    def _wait(self, error: Exception) -> None:
        """Longer each time."""
        if not self._failures:
            self._failing = time.monotonic()
        if (not self._told and time.monotonic() - self._failing >= _PATIENCE) or (self._failures + 1) % 30 == 0:
            _LOG.warning("%s%s", error, AGAIN)
            self._told = True
        self.stop.wait(min(0.5 * 2 ** min(self._failures, 10), _LONGEST))
        self._failures += 1

    def _live(self) -> None:
        """Tell the SuperLink that this node is alive, also while it cannot be reached for a while."""
        while not self.stop.wait(fleetapi.HEARTBEAT):
            try:
                if self._active:
                    self._fleet.heartbeat()
            except (ConnectionError, RefusedError):
                continue  # the other thread notices, too

    def _handle(self, header: Header) -> None:
        """Answer a message."""
        begun = time.monotonic()
        try:
            message = self._fleet.fetch(header, self.stop)
        except Exception as error:  # whatever comes, the node goes on
            _LOG.warning("a message was lost: %s: %s", type(error).__name__, error)
            return
        threading.Thread(target=self._fleet.confirm, args=(header,), daemon=True).start()  # nobody waits for it
        try:
            body = siloline.ask(self._silo, parcel.unpacked(message.content), seconds=header.ends - time.time())
        except (EnvelopeError, ValueError) as error:
            body = siloline.failed(f"the message cannot be used: {words(error)}")
        self._push(Message(parcel.packed(body), reply_to=message), header.ends, time.monotonic() - begun)

    def _push(self, reply: Message, ends: float, seconds: float) -> None:
        """Send an answer, again if it is lost on the way."""
        for number in range(_PUSHES):
            try:
                self._fleet.push(reply, seconds, again=number > 0)
            except (ConnectionError, RefusedError) as error:
                spurious = isinstance(error, ConnectionError) or number < _SPURIOUS
                if self.stop.is_set() or time.time() > ends or not spurious:
                    _LOG.warning("an answer was lost: %s", error)
                    return
                self.stop.wait(min(0.5 * 2 ** min(number, 10), _LONGEST))
            else:
                return
        _LOG.warning("an answer was lost: it was sent %d times in vain", _PUSHES)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedkeel.world.flower.fleetnode", description=__doc__)
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--silo", required=True, metavar="SOCKET", help="the silo's unix socket")
    parser.add_argument("--root-certificates", type=Path, metavar="CA")
    parser.add_argument("--key", type=Path, help="the node's private key; without one, a new node each time")
    parser.add_argument("--insecure", action="store_true", help="plain text instead of TLS")
    parser.add_argument("--log", type=Path, help="what the node has written so far, if it was started before")
    parser.add_argument("--poll", type=float, default=0.1, metavar="SECONDS", help="between two looks for messages")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        if not 0.001 <= given.poll <= 60:
            raise InputError(f"--poll must be between 0.001 and 60 seconds; got {given.poll:g}")
        link = Link(given.superlink, given.root_certificates, given.key, given.insecure)
        if given.log is not None and again.goodbye(link, given.log):
            _LOG.info("the SuperLink was told that the last process of this node has ended")
        node = FleetNode(Fleet(link), given.silo, given.poll)
        _stop_on_signals(node)
        node.run()
    except FedkeelError as error:
        _LOG.error("%s", error)
        return error.exit_code
    _LOG.info("stopped")
    return 0


def _stop_on_signals(node: FleetNode) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        if node.stop.is_set():
            raise KeyboardInterrupt
        node.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


if __name__ == "__main__":
    sys.exit(main())
