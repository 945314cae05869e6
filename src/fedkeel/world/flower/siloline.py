"""A node's line to its silo: the process beside it that has the data, behind a unix socket.

A silo that dies is started again by another process, and a message that it gets twice does no harm. So what breaks is
tried again.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from math import inf
from typing import Any

from fedkeel.world.remote import envelope
from fedkeel.world.remote.envelope import EnvelopeError

CONNECT = 30.0
"""Seconds in which a silo must take the connection."""
TRIES = 3
"""How often a message is given to a silo that ends in the middle of it."""
MOST = 1 << 36
"""The largest answer of a silo in bytes, where nothing else is said."""
_AGAIN = 0.1
_PART = 1 << 20
_LONGEST = 3600.0
"""Seconds of one wait: systems bound it."""


def ask(
    silo: str, body: bytes, most: int = MOST, connect: float = CONNECT, tries: int = TRIES, seconds: float = inf
) -> bytes:
    """The silo's answer to a message, or an answer that says why there is none.

    After so many `seconds`, nobody waits for it any more. The silo may still work on it; if the message comes again, it
    is answered again.
    """
    why, end = "", time.monotonic() + seconds
    for _ in range(tries):
        try:
            line = _connected(silo, min(connect, end - time.monotonic()))
        except OSError as error:
            return failed(f"the silo cannot be reached ({error}); is its process running?")
        try:
            with line:
                line.end = end
                envelope.send(line, body)
                return envelope.receive(line, most)
        except EnvelopeError as error:
            return failed(f"the silo's answer cannot be used: {error}")
        except TimeoutError:
            return failed("the silo did not answer in time; see its log")
        except OSError as error:
            why = str(error)
    return failed(f"the silo ended {tries} times while it worked on this message ({why}); see its log")


def failed(why: str) -> bytes:
    """The answer that says why there is no other."""
    return envelope.plain(envelope.FAILED, why=why)


def _connected(silo: str, seconds: float) -> _Line:
    end = time.monotonic() + seconds
    while True:
        line = _Line(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.settimeout(max(_AGAIN, end - time.monotonic()))
            line.connect(silo)
            line.settimeout(None)
            line.watch()
        except (FileNotFoundError, ConnectionError, TimeoutError):
            line.close()
            if time.monotonic() >= end:
                raise
            time.sleep(_AGAIN)
        except OSError:  # a path that is too long, no permission: waiting does not help
            line.close()
            raise
        else:
            return line


class _Line(socket.socket):
    """A connection that ends when the process at the other end ends, even if a child of that holds it open."""

    _process: int | None = None
    end = inf
    """When to wait no longer, by the monotonic clock; then TimeoutError is raised."""

    def watch(self) -> None:
        """From now on."""
        size = struct.calcsize("3i")
        pid = struct.unpack("3i", self.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
        try:
            self._process = os.pidfd_open(pid) if pid > 0 else None
        except ProcessLookupError:
            raise ConnectionError("the silo has ended") from None
        except OSError:  # not on this system
            self._process = None

    def close(self) -> None:
        """Of the process, too."""
        process, self._process = self._process, None
        if process is not None:
            os.close(process)
        super().close()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """What has come, or nothing if there will be nothing more."""
        while True:
            dead = self._ended(select.POLLIN)
            try:
                return super().recv(size, flags | socket.MSG_DONTWAIT)
            except BlockingIOError:
                if dead:
                    return b""

    def sendall(self, data: Any, flags: int = 0) -> None:
        """All of it."""
        rest = memoryview(data)
        while rest:
            if self._ended(select.POLLOUT):
                raise ConnectionError("the silo has ended")
            try:
                rest = rest[super().send(rest[:_PART], flags | socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                continue

    def _ended(self, event: int) -> bool:
        """Wait until the connection is ready, or the other process has ended; whether it has."""
        left = min(self.end - time.monotonic(), _LONGEST)
        if left <= 0:
            raise TimeoutError
        poll = select.poll()
        poll.register(self.fileno(), event)
        if self._process is not None:
            poll.register(self._process, select.POLLIN)
        return self._process in [number for number, _ in poll.poll(1000 * left)]
