"""A transport in this process: nodes are functions in threads. For tests, and to try things out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic, sleep

from fedkeel.world.remote.transport import Reply

Handler = Callable[[bytes], bytes]
"""What a node does with a message."""
Link = Callable[[int, bytes], Sequence[tuple[float, bytes]]]
"""What becomes of bytes on their way to or from a node: what arrives after how many seconds. Nothing, if they are
lost; two, if they are doubled."""


def direct(_: int, body: bytes) -> Sequence[tuple[float, bytes]]:
    """A link without faults."""
    return [(0.0, body)]


class Loopback:
    """Every node handles one message after the other, or with `interrupts` several at a time."""

    def __init__(
        self, handlers: Mapping[int, Handler], interrupts: bool = False, down: Link = direct, up: Link = direct
    ) -> None:
        self.interrupts = interrupts
        self.handlers = dict(handlers)
        """May be changed: a node that is not in it is not connected."""
        self.most: int | None = None
        """Bytes of the largest answer that is taken."""
        self._down, self._up = down, up
        self._numbers = count(1)
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._came: list[Reply] = []
        self._lock = threading.Lock()

    def nodes(self) -> list[int]:
        """Those that are connected."""
        return sorted(self.handlers)

    def push(self, node: int, body: bytes, seconds: float) -> str:
        """Hand it to the node's thread."""
        name, void = str(next(self._numbers)), monotonic() + seconds
        threads = 8 if self.interrupts else 1
        pool = self._pools.setdefault(node, ThreadPoolExecutor(threads, thread_name_prefix=f"node-{node}"))
        for after, came in self._down(node, body):
            pool.submit(self._handle, name, node, came, after, void)
        return name

    def _handle(self, name: str, node: int, body: bytes, after: float, void: float) -> None:
        sleep(after)
        handler = self.handlers.get(node)
        if monotonic() > void:
            self._reply(Reply(name, node, None, "the message expired"))
        elif handler is None:
            self._reply(Reply(name, node, None, "the node is not connected"))
        else:
            try:
                made = handler(body)
            except BaseException as error:
                self._reply(Reply(name, node, None, f"the node failed ({type(error).__name__}: {error})"))
                return
            for later, answer in self._up(node, made):
                sleep(later)
                self._reply(Reply(name, node, answer))

    def _reply(self, reply: Reply) -> None:
        if reply.body is not None and self.most is not None and len(reply.body) > self.most:
            reply = Reply.refused(reply.message, reply.node, len(reply.body), self.most)
        with self._lock:
            self._came.append(reply)

    def poll(self) -> list[Reply]:
        """What came."""
        with self._lock:
            came, self._came = self._came, []
        return came

    def forget(self, messages: Collection[str]) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """End the threads; what they do is finished first."""
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
