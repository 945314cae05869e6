"""One file per method, imported when the method is used."""

from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job, Updates
from fedkeel.methods.oracle import Oracle
from fedkeel.methods.registry import Method, compose, find, method, methods
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
