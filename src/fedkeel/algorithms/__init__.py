"""One file a method; importing this package registers them all."""

from fedkeel.algorithms import fedavg as fedavg
from fedkeel.algorithms.registry import Method, find, method, methods
from fedkeel.algorithms.rules import ClientRule, Job, Message, Oracle, ServerRule, ServerState, Updates

__all__ = [
    "ClientRule",
    "Job",
    "Message",
    "Method",
    "Oracle",
    "ServerRule",
    "ServerState",
    "Updates",
    "find",
    "method",
    "methods",
]
