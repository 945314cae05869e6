"""One file a method; importing this package registers them all."""

from fedkeel.methods import asofed as asofed
from fedkeel.methods import fedadagrad as fedadagrad
from fedkeel.methods import fedadam as fedadam
from fedkeel.methods import fedagg as fedagg
from fedkeel.methods import fedasmu as fedasmu
from fedkeel.methods import fedasync as fedasync
from fedkeel.methods import fedavg as fedavg
from fedkeel.methods import fedbabu as fedbabu
from fedkeel.methods import fedbuff as fedbuff
from fedkeel.methods import fedcm as fedcm
from fedkeel.methods import fedcos as fedcos
from fedkeel.methods import feddyn as feddyn
from fedkeel.methods import fedent as fedent
from fedkeel.methods import fedgh as fedgh
from fedkeel.methods import fedlga as fedlga
from fedkeel.methods import fedlws as fedlws
from fedkeel.methods import fednorm as fednorm
from fedkeel.methods import fednova as fednova
from fedkeel.methods import fedprox as fedprox
from fedkeel.methods import fedsa as fedsa
from fedkeel.methods import fedsam as fedsam
from fedkeel.methods import fedssmu as fedssmu
from fedkeel.methods import fedyogi as fedyogi
from fedkeel.methods import mimelite as mimelite
from fedkeel.methods import mofedsam as mofedsam
from fedkeel.methods import moon as moon
from fedkeel.methods import port as port
from fedkeel.methods import scaffold as scaffold
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
