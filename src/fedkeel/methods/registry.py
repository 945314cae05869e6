"""The methods by name, and their settings split between client rule and server rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar, get_args

from fedkeel.config import usercode
from fedkeel.config.section import RULES, Section, make
from fedkeel.errors import InputError, no_such_setting, shown, unknown
from fedkeel.methods.client import ClientRule
from fedkeel.methods.server import Pace, ServerRule

R = TypeVar("R", bound=Section)
Rule = type[ClientRule] | type[ServerRule]

_BASES: dict[str, Rule] = {"client": ClientRule, "server": ServerRule}
_TAKEN = {"name", *RULES}
"""Words of the section `algorithm`, which no setting of a rule may use as its name."""
_NAME = re.compile(r"\w[\w.+-]{0,59}")


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
                raise no_such_setting("algorithm", key, self.name, known)
        return _make(self.client, settings), _make(self.server, settings)


def _make(rule: type[R], settings: Mapping[str, Any]) -> R:
    return make(rule, {k: v for k, v in settings.items() if k in rule.model_fields}, "algorithm")


def method(name: str, client: type[ClientRule], server: type[ServerRule], about: str = "", cite: str = "") -> Method:
    """A method of two rules, which an experiment finds as `module:variable`; `name` is what figures call it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"method: the name must have 1 to 60 letters, digits or _ . + -, and start with no sign; got {shown(name)}"
        )
    for side, rule in (("client", client), ("server", server)):
        _check_rule(rule, side, f"method: the {side} rule of {name}")
    return Method(name, client, server, about, cite)


_NAMES = (
    "asofed", "fedadagrad", "fedadam", "fedagg", "fedasmu", "fedasync", "fedavg", "fedbabu", "fedbuff", "fedcm",
    "fedcos", "feddyn", "fedent", "fedgh", "fedlga", "fedlws", "fednorm", "fednova", "fedprox", "fedsa", "fedsam",
    "fedssmu", "fedyogi", "mimelite", "mofedsam", "moon", "port", "scaffold",
)  # fmt: skip
"""Methods of the package; a method's module and its variable there are called alike."""

_METHODS: dict[str, Method] = {}
"""The methods that were used so far."""


def enrol(each: Method) -> None:
    """Let `algorithm.name` find a method by its name alone."""
    _METHODS[each.name] = each


def methods() -> dict[str, Method]:
    """All methods of the package, by name."""
    return {name: find(name) for name in sorted({*_NAMES, *_METHODS})}


def find(name: str, field: str = "algorithm.name") -> Method:
    """The method of that name, or the user's own, or an error that lists all."""
    if usercode.is_own(name):
        return _own(name, field)
    found = _known(name)
    if found is None:
        raise unknown(field, name, {*_NAMES, *_METHODS}, also="module:name of your own")
    return found


def _known(name: str) -> Method | None:
    """A method of the package, imported if it was not before."""
    if name in _NAMES and name not in _METHODS:
        enrol(getattr(import_module(f"fedkeel.methods.{name}"), name))
    return _METHODS.get(name)


def _at_odds(client: type[ClientRule], server: type[ServerRule]) -> list[str]:
    """Settings that both rules have, but with different types or defaults."""
    ours, theirs = ({n: (f.annotation, f.default) for n, f in rule.model_fields.items()} for rule in (client, server))
    return sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])


def _compatible(client: type[ClientRule], server: type[ServerRule]) -> bool:
    return client.pair == server.pair and not _at_odds(client, server)


def compose(name: str, client: str | None = None, server: str | None = None) -> Method:
    """The method `name`, with the client rule of one method and the server rule of another in place of its own.

    Rules that need each other's messages (`pair`) go together or not at all.
    """
    base = find(name)
    trainer, trains = (base.name, base.client) if client is None else _half(client, "client")
    receiver, serves = (base.name, base.server) if server is None else _half(server, "server")
    if not _compatible(trains, serves):
        clients = [m.name for m in methods().values() if own_half(m, "client") and _compatible(m.client, serves)]
        servers = [m.name for m in methods().values() if own_half(m, "server") and _compatible(trains, m.server)]
        why = "one needs messages that the other does not send"
        if trains.pair == serves.pair:
            odd = _at_odds(trains, serves)[0]
            why = f"their settings {odd} differ in type or default (in a rule of your own, rename it)"
        raise InputError(
            f"algorithm: the client rule of {trainer} does not go with the server rule of {receiver}, because {why}; "
            f"use algorithm.server {_any(servers)} with this client rule, or "
            f"algorithm.client {_any(clients)} with this server rule"
        )
    if (base.client, base.server) == (trains, serves):
        return base
    for known in methods().values():
        if (known.client, known.server) == (trains, serves):
            return known
    return Method(f"{trainer}+{receiver}", trains, serves)


def own_half(each: Method, side: str) -> bool:
    """Whether the method has this half of its own; methods without one use FedAvg's."""
    plain = find("fedavg")
    return each is plain or getattr(each, side).__module__ != getattr(plain, side).__module__


def _half(name: str, side: str) -> tuple[str, Any]:
    """(What it is called, the rule): a method's half, or a rule of the user's."""
    field = f"algorithm.{side}"
    if usercode.is_own(name):
        own = usercode.find(name, field, f"module:name of a {side} rule or a method")
        if not isinstance(own, Method):
            _check_rule(own, side, f"{field}: {name}")
            return own.__name__, own
    found = find(name, field)
    if not own_half(found, side):
        names = ", ".join(m.name for m in methods().values() if own_half(m, side))
        raise InputError(f"{field}: {name} has no {side} rule of its own; choose one of {names}")
    return found.name, getattr(found, side)


def _own(name: str, field: str) -> Method:
    """A method of the user's."""
    found = usercode.find(name, field, "module:name of a method")
    if not isinstance(found, Method):
        hint = next(
            (side for side, base in _BASES.items() if isinstance(found, type) and issubclass(found, base)), None
        )
        raise InputError(
            f"{field}: {name} must be a method, made by fedkeel.method; got {_a(found)}"
            + (f" (use algorithm.{hint} for this {hint} rule)" if hint else "")
        )
    known = _known(found.name)
    if known is not None and known is not found:
        raise InputError(f"{field}: {name} is called {found.name}, like a method of fedkeel; give it another name")
    return found


def _check_rule(rule: object, side: str, what: str) -> None:
    """Refuse a rule that no run could use."""
    base = _BASES[side]
    if not (isinstance(rule, type) and issubclass(rule, base)):
        raise InputError(f"{what} must be a subclass of fedkeel.{base.__name__}; got {_a(rule)}")
    hidden = next(iter(rule.__private_attributes__), None)
    if hidden:
        raise InputError(
            f"{what} has the attribute {hidden}, which no checkpoint saves; keep a server's state in "
            "ServerState.memory, a client's in the second dictionary that end returns, and constants in a ClassVar"
        )
    if typo := usercode.misspelt(rule, base):
        raise InputError(f"{what} has {typo}")
    for name, field in rule.model_fields.items():
        if name in _TAKEN or hasattr(base, name):
            raise InputError(f"{what} has a setting called {name}, which already has a meaning; give it another name")
        if field.is_required():
            raise InputError(f"{what} has no default for its setting {name}; give every setting a default")
    try:
        made = make(rule, {}, what)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(
            f"{what} cannot be made ({usercode.said(error)}); it must work with the defaults of its settings"
        ) from error
    if isinstance(made, ServerRule):
        if made.pace not in get_args(Pace):
            raise InputError(f"{what}: pace must be one of {', '.join(get_args(Pace))}; got {shown(made.pace)}")
        hook = "aggregate" if made.pace == "barrier" else "receive"
        if getattr(rule, hook) is getattr(ServerRule, hook):
            raise InputError(f"{what} has no method {hook}, which its pace {made.pace} needs; define {hook}")


def _a(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def _any(names: list[str]) -> str:
    """The names joined by "or"; where the package has none, a rule of the user's own."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "module:name with the same pair"
