"""One file a method; importing this package registers them all."""

from fedkeel.algorithms import asofed as asofed
from fedkeel.algorithms import fedadagrad as fedadagrad
from fedkeel.algorithms import fedadam as fedadam
from fedkeel.algorithms import fedagg as fedagg
from fedkeel.algorithms import fedasmu as fedasmu
from fedkeel.algorithms import fedasync as fedasync
from fedkeel.algorithms import fedavg as fedavg
from fedkeel.algorithms import fedbabu as fedbabu
from fedkeel.algorithms import fedbuff as fedbuff
from fedkeel.algorithms import fedcm as fedcm
from fedkeel.algorithms import fedcos as fedcos
from fedkeel.algorithms import feddyn as feddyn
from fedkeel.algorithms import fedent as fedent
from fedkeel.algorithms import fedgh as fedgh
from fedkeel.algorithms import fedlga as fedlga
from fedkeel.algorithms import fedlws as fedlws
from fedkeel.algorithms import fednorm as fednorm
from fedkeel.algorithms import fednova as fednova
from fedkeel.algorithms import fedprox as fedprox
from fedkeel.algorithms import fedsa as fedsa
from fedkeel.algorithms import fedsam as fedsam
from fedkeel.algorithms import fedssmu as fedssmu
from fedkeel.algorithms import fedyogi as fedyogi
from fedkeel.algorithms import mimelite as mimelite
from fedkeel.algorithms import mofedsam as mofedsam
from fedkeel.algorithms import moon as moon
from fedkeel.algorithms import port as port
from fedkeel.algorithms import scaffold as scaffold
from fedkeel.algorithms.registry import Method, compose, find, method, methods
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
    "compose",
    "find",
    "method",
    "methods",
]
