"""The ClientApp of Flower's own nodes: hands each message to the silo and its answer back.

Flower starts a process for every message. So this imports nothing that takes long.
"""

from __future__ import annotations

from time import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedkeel.world.flower import parcel, siloline
from fedkeel.world.remote.envelope import EnvelopeError

app = ClientApp()
"""Needs `silo` in the node's settings: the path of the silo's socket; `most` is the largest answer in bytes."""


@app.query()
def relay(message: Message, context: Context) -> Message:
    """The silo's answer to a message."""
    settings = context.node_config
    silo = settings.get("silo")
    if not isinstance(silo, str):
        return _reply(message, siloline.failed("the node has no silo; start it with --node-config 'silo=\"SOCKET\"'"))
    try:
        body = parcel.unpacked(message.content)
    except EnvelopeError as error:
        return _reply(message, siloline.failed(f"the message cannot be used: {error}"))
    most, left = int(settings.get("most", siloline.MOST)), message.metadata.created_at + message.metadata.ttl - time()
    return _reply(message, siloline.ask(silo, body, most, seconds=left))


def _reply(message: Message, body: bytes) -> Message:
    return Message(parcel.packed(body), reply_to=message)
