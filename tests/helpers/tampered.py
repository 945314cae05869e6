"""Answers of a site that are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fedkeel.world.remote.loopback import Handler
from fedkeel.world.remote.message import Message
from tests.helpers.faulty import kind

Tamper = Callable[[Message], bytes]


def tampering(handler: Handler, of: str, tamper: Tamper, times: int = 10**9) -> Handler:
    """A site whose answers of a kind are changed, the first so many of them."""
    left = times

    def answer(body: bytes) -> bytes:
        nonlocal left
        made = handler(body)
        if kind(made) != of or not left:
            return made
        left -= 1
        return tamper(Message.unpack(made))

    return answer


def facts(**told: Any) -> Tamper:
    """Other facts; None leaves one out."""

    def tamper(message: Message) -> bytes:
        merged = {**message.facts, **told}
        kept = {name: each for name, each in merged.items() if each is not None or name not in told}
        return replace(message, facts=kept).pack()

    return tamper


def tensors(**made: Callable[[torch.Tensor], torch.Tensor]) -> Tamper:
    """Other tensors, made from those that are there; names have `__` for `/`."""

    def tamper(message: Message) -> bytes:
        changed = {name.replace("__", "/"): make for name, make in made.items()}
        assert changed.keys() <= message.tensors.keys(), [*message.tensors]
        new = {name: make(message.tensors[name].clone()) for name, make in changed.items()}
        return replace(message, tensors={**message.tensors, **new}).pack()

    return tamper


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """One number of a tensor is another."""

    def make(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return make


def headed(told: Any, data: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def gigantic(message: Message) -> bytes:
    """A header that claims a tensor of a petabyte."""
    meta = {"__metadata__": {"fedkeel": json.dumps({"kind": message.kind, "protocol": 1, **message.facts})}}
    return headed({**meta, "w": {"dtype": "F32", "shape": [1, 1 << 48], "data_offsets": [0, 1 << 50]}}, b"0" * 64)


TURNS: tuple[tuple[Tamper, str, str], ...] = (
    (facts(run="0" * 32), "malformed", "another run"),
    (facts(job=-1), "old job", r"job -1 is over"),
    (lambda m: replace(m, tensors={**m.tensors, "more": torch.zeros(3)}).pack(), "malformed", "other names"),
    (tensors(w=lambda w: w[:, 1:]), "malformed", "w must have the shape"),
    (tensors(w=torch.Tensor.half), "malformed", "w must be torch.float32"),
    (tensors(w=filled(float("nan"))), "not finite", "NaN or infinite"),
    (lambda m: m.pack() + b"0" * 50_000_000, "malformed", "bytes; at most .* are allowed"),
)
"""Uploads that are none, each with the reason and the words of its refusal."""


def in_turn(handler: Handler) -> Handler:
    """A site that sends those of `TURNS`, one after the other, and a good one after each: else it is asked rarely."""
    left = [each for tamper, _, _ in reversed(TURNS) for each in (Message.pack, tamper)]

    def answer(body: bytes) -> bytes:
        made = handler(body)
        return left.pop()(Message.unpack(made)) if left and kind(made) == "done" else made

    return answer


def install() -> None:
    """The silo of this process is such a site."""
    from fedkeel.deploy.silo import Silo

    usual = Silo.answer

    def first(self: Silo, body: bytes) -> bytes:
        handlers.setdefault(id(self), in_turn(lambda each: usual(self, each)))
        return handlers[id(self)](body)

    handlers: dict[int, Handler] = {}
    Silo.answer = first  # type: ignore[method-assign]
