"""Messages with tensors, and back; see `envelope`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedkeel.errors import words
from fedkeel.world.remote import envelope
from fedkeel.world.remote.envelope import EnvelopeError


@dataclass(frozen=True)
class Message:
    """What travels between the server and a node."""

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Plain values of JSON."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def pack(self) -> bytes:
        """As it travels."""
        told = json.dumps({"kind": self.kind, "protocol": envelope.PROTOCOL, **self.facts})
        tensors = {name: each.detach().cpu().contiguous().clone() for name, each in self.tensors.items()}
        return save(tensors, {envelope.KEY: told}) if tensors else envelope.plain(self.kind, **self.facts)

    @classmethod
    def unpack(cls, body: bytes) -> Message:
        """The message again; raises EnvelopeError for anything else."""
        told = envelope.facts(body)
        kind = told.pop("kind")
        told.pop("protocol")
        try:
            tensors = load(bytes(body))
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise EnvelopeError(f"its tensors cannot be read ({words(error)})") from None
        return cls(kind, told, tensors)

    def below(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with a prefix, without it."""
        return {name.removeprefix(prefix): each for name, each in self.tensors.items() if name.startswith(prefix)}


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with a prefix before their names."""
    return {f"{prefix}{name}": each for name, each in tensors.items()}


def finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite."""
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def told_why(message: Message) -> str:
    """What a node says went wrong, on one line."""
    return words(ValueError(message.facts.get("why")))
