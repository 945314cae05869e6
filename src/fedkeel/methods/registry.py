"""The methods by name, and their settings split between client rule and server rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedkeel.config.section import Section, make
from fedkeel.errors import InputError, label, unknown
from fedkeel.methods.client import ClientRule
from fedkeel.methods.server import ServerRule

R = TypeVar("R", bound=Section)


@dataclass(frozen=True)
class Method:
    """A named pair of rules."""

    name: str
    client: type[ClientRule]
    server: type[ServerRule]
    about: str = ""
    cite: str = ""

    @property
    def defaults(self) -> dict[str, Any]:
        """Every hyper-parameter with its default."""
        return {**self.client().model_dump(), **self.server().model_dump()}

    def rules(self, settings: Mapping[str, Any]) -> tuple[ClientRule, ServerRule]:
        """Both rules with these settings."""
        known = self.client.model_fields.keys() | self.server.model_fields.keys()
        for key in settings:
            if key not in known:
                accepted = ", ".join(sorted(known)) or "none"
                raise InputError(f"algorithm.{label(key)}: {self.name} has no such setting; accepted: {accepted}")
        return _make(self.client, settings), _make(self.server, settings)


def _make(rule: type[R], settings: Mapping[str, Any]) -> R:
    return make(rule, {k: v for k, v in settings.items() if k in rule.model_fields}, "algorithm")


_METHODS: dict[str, Method] = {}


def method(name: str, client: type[ClientRule], server: type[ServerRule], about: str, cite: str) -> Method:
    """Register a method, so that `algorithm.name` finds it."""
    _METHODS[name] = Method(name, client, server, about, cite)
    return _METHODS[name]


def methods() -> dict[str, Method]:
    """All registered methods, by name."""
    return {name: _METHODS[name] for name in sorted(_METHODS)}


def find(name: str, field: str = "algorithm.name") -> Method:
    """The method of that name, or an error that lists all."""
    if name not in _METHODS:
        raise unknown(field, name, _METHODS)
    return _METHODS[name]


def compose(name: str, client: str | None = None, server: str | None = None) -> Method:
    """The method `name`, with the client rule of one method and the server rule of another in place of its own.

    Rules that need each other's messages (`pair`) go together or not at all.
    """
    base = find(name)
    trains = _half(client, "client") if client is not None else base
    serves = _half(server, "server") if server is not None else base
    if trains.client.pair != serves.server.pair:
        clients = [m.name for m in methods().values() if own_half(m, "client") and m.client.pair == serves.server.pair]
        servers = [m.name for m in methods().values() if own_half(m, "server") and m.server.pair == trains.client.pair]
        raise InputError(
            f"algorithm: the client rule of {trains.name} is not accepted with the server rule of {serves.name}: one "
            f"needs messages that the other does not send; accepted: algorithm.server {_any(servers)} with this client "
            f"rule, or algorithm.client {_any(clients)} with this server rule"
        )
    for known in methods().values():
        if (known.client, known.server) == (trains.client, serves.server):
            return known
    return Method(f"{trains.name}+{serves.name}", trains.client, serves.server)


def own_half(each: Method, side: str) -> bool:
    """Whether this half is the method's own; FedAvg's are those that others do without."""
    plain = find("fedavg")
    if side == "client":
        return each is plain or each.client is not plain.client
    return each is plain or each.server.aggregate is not plain.server.aggregate


def _half(name: str, side: str) -> Method:
    found = find(name, f"algorithm.{side}")
    if not own_half(found, side):
        accepted = ", ".join(m.name for m in methods().values() if own_half(m, side))
        raise InputError(f"algorithm.{side}: {name} has no {side} rule of its own; accepted: {accepted}")
    return found


def _any(names: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
