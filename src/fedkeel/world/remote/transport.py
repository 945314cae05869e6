"""What carries messages between the server and the nodes: Flower, or a loopback in this process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from fedkeel.world.remote.envelope import over


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a message, or the news that there will be none."""

    message: str
    """The message that it answers, as `push` named it."""
    node: int
    body: bytes | None
    """None: there is no answer."""
    error: str = ""
    """Why there is none."""
    too_large: bool = False
    """Whether it was refused for its size."""

    @classmethod
    def refused(cls, message: str, node: int, size: int, most: int) -> Reply:
        """For an answer of more bytes than are allowed."""
        return cls(message, node, None, over(size, most), too_large=True)


class Transport(Protocol):
    """Delivers bytes to nodes and brings answers. A message may be lost, late or delivered twice; so may an answer.

    No call waits for a node. What cannot be reached for a moment raises ConnectionError; the caller tries again.
    """

    interrupts: bool
    """Whether a node can take a message while it works on another."""
    most: int | None
    """The bytes of the largest answer that is taken; None: any."""

    def nodes(self) -> list[int]:
        """The nodes that are connected now, by numbers that stay theirs."""
        ...

    def push(self, node: int, body: bytes, seconds: float) -> str:
        """Send a message that is void after so many seconds; returns its name."""
        ...

    def poll(self) -> list[Reply]:
        """What came since the last call, each at most once for each time that it came."""
        ...

    def forget(self, messages: Collection[str]) -> None:
        """Answers to these are not waited for any more; they may still come."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...
