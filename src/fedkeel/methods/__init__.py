"""One file a method; importing this package makes them all known by name."""

from importlib import import_module

from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job, Updates
from fedkeel.methods.oracle import Oracle
from fedkeel.methods.registry import Method, compose, enrol, find, method, methods
from fedkeel.methods.server import ServerRule, ServerState
from fedkeel.methods.types import Message

__all__ = [
    "ClientRule",
    "Job",
    "Message",
    "Method",
    "Oracle",
    "ServerRule",
    "ServerState",
    "Updates",
    "compose",
    "find",
    "method",
    "methods",
]

_NAMES = (
    "asofed", "fedadagrad", "fedadam", "fedagg", "fedasmu", "fedasync", "fedavg", "fedbabu", "fedbuff", "fedcm",
    "fedcos", "feddyn", "fedent", "fedgh", "fedlga", "fedlws", "fednorm", "fednova", "fedprox", "fedsa", "fedsam",
    "fedssmu", "fedyogi", "mimelite", "mofedsam", "moon", "port", "scaffold",
)  # fmt: skip
"""A method's module and its variable there are called alike."""

for _name in _NAMES:
    enrol(getattr(import_module(f"{__name__}.{_name}"), _name))
