"""The ClientApp of Flower's own nodes."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedkeel.world.flower import parcel
from fedkeel.world.flower.relay import app
from fedkeel.world.remote import envelope
from tests.helpers.flower import Silo

pytestmark = pytest.mark.extras

IMPORTS = """
import sys
import flwr.app, flwr.clientapp
before = {*sys.modules}
import fedkeel.world.flower.relay
new = {*sys.modules} - before
print(*sorted(name for name in new if name.split(".")[0] in ("fedkeel", "numpy", "torch", "pydantic")))
print("torch" in sys.modules)
"""


def asked(content: RecordDict, ttl: float = 60.0, **settings: Any) -> Any:
    message = Message(content, 7, parcel.KIND, ttl=ttl)
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(run_id=1, node_id=7, node_config=settings, state=RecordDict(), run_config={})
    reply = app(message, context)
    assert reply.metadata.reply_to_message_id == "m"
    return parcel.unpacked(reply.content)


def test_a_message_goes_to_the_silo_and_back(silo: Silo) -> None:
    assert asked(parcel.packed(b"body"), silo=silo.path) == b"answer to body"
    assert silo.got == [b"body"]


def test_an_answer_that_is_too_large_is_told(silo: Silo) -> None:
    told = envelope.facts(asked(parcel.packed(b"body"), silo=silo.path, most=3))
    assert told["kind"] == envelope.FAILED
    assert "at most 3 are allowed" in told["why"]


def test_a_silo_that_never_answers_is_given_up_with_the_message(silo: Silo) -> None:
    free = threading.Event()
    silo.answer = lambda body: body if free.wait(30) else b""
    assert "in time" in envelope.facts(asked(parcel.packed(b"body"), ttl=0.5, silo=silo.path))["why"]
    free.set()


def test_a_node_without_a_silo_says_so() -> None:
    assert "--node-config" in envelope.facts(asked(parcel.packed(b"body")))["why"]


def test_a_message_of_others_does_not_reach_the_silo(silo: Silo) -> None:
    told = envelope.facts(asked(RecordDict({"other": ConfigRecord({"a": 1})}), silo=silo.path))
    assert "no message of fedkeel" in told["why"]
    assert silo.got == []


def test_it_imports_next_to_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    names, torch = done.stdout.splitlines()
    assert names.split() == [
        "fedkeel",
        "fedkeel.world",
        "fedkeel.world.flower",
        "fedkeel.world.flower.parcel",
        "fedkeel.world.flower.relay",
        "fedkeel.world.flower.siloline",
        "fedkeel.world.remote",
        "fedkeel.world.remote.envelope",
    ]
    assert torch == "False"
