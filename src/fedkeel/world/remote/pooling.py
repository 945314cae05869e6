"""Statistics that sites compute together, step by step, before their first jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedkeel.errors import FedkeelError, shown, words
from fedkeel.world.remote.message import Message

Reduce = Callable[[Sequence[Message]], Message]
"""Puts the numbers of several sites together, in the order of the sites."""


@dataclass
class Pooling:
    """What sites want put together, and what came of it."""

    reduce: Reduce
    needed: int = 1
    """How many sites the statistics are computed of: the first that ask."""
    results: list[Message] = field(default_factory=list)
    """By step."""
    nodes: dict[int, int] = field(default_factory=dict)
    """By client that has asked and is not done: its node."""
    _asking: dict[int, Message] = field(default_factory=dict)
    """By client: what it wants put together."""
    _of: frozenset[int] | None = None
    """Whose numbers are in the statistics."""

    def ask(self, client: int, node: int, message: Message) -> None:
        """A client wants its numbers put together with those of others; raises FedkeelError if they make no sense."""
        step = message.facts.get("step")
        if type(step) is not int or not 0 <= step <= len(self.results):
            raise FedkeelError(f"it wants statistics for step {shown(step)}; step {len(self.results)} is the next")
        self._reduced([message])  # by themselves, so that only the one who sent them is to blame
        self._asking[client], self.nodes[client] = message, node

    def known(self) -> dict[int, Message]:
        """By client: the answer to what it wants, where that is there."""
        steps = {client: int(wanted.facts["step"]) for client, wanted in self._asking.items()}
        return {
            client: Message("pooled", {**self.results[step].facts, "step": step}, self.results[step].tensors)
            for client, step in steps.items()
            if step < len(self.results)
        }

    def given(self, client: int) -> None:
        """A client has its answer; it may ask for the next step."""
        del self._asking[client]

    def advance(self) -> bool:
        """Do the next step if all have asked whose numbers are in it; raises FedkeelError if they do not fit."""
        step = len(self.results)
        ready = {client for client, wanted in self._asking.items() if wanted.facts["step"] == step}
        if self._of is None and not step and len(ready) >= self.needed:
            self._of = frozenset(ready)
        if self._of is None or not self._of <= ready:
            return False
        self.results.append(self._reduced([self._asking[client] for client in sorted(self._of)]))
        return True

    def _reduced(self, wanted: Sequence[Message]) -> Message:
        """What several want, together, in a form that can be sent; whatever sites send, it fails with FedkeelError."""
        try:
            found = self.reduce(wanted)
            found.pack()
        except FedkeelError:
            raise
        except Exception as error:
            raise FedkeelError(f"its numbers cannot be put together: {type(error).__name__}: {words(error)}") from None
        return found

    def dissolve(self) -> list[int]:
        """The numbers do not fit together: the nodes that they came from. Before the first result, others may come."""
        nodes = [self.nodes[client] for client in sorted(self._of or ())]
        self._of = self._of if self.results else None
        return nodes

    def leave(self, node: int) -> None:
        """The node does not take part for now."""
        for client in [client for client, owner in self.nodes.items() if owner == node]:
            del self.nodes[client]
            self._asking.pop(client, None)
