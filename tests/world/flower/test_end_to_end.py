"""A real SuperLink on this machine, Flower's own node and ours, and a SuperLink that dies on the way."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedkeel.world.remote import envelope
from tests.helpers.flower import Silo, flower, short_folder, until

pytestmark = pytest.mark.extras

SERVER = '''
import json
import time

from fedkeel.world.flower.serverapp import serverapp
from fedkeel.world.remote import envelope


def serve(transport, folder, out, started, stop):
    transport.most = 7_000_000
    log = out.open("a", buffering=1)

    def say(*told):
        log.write(json.dumps(told) + "\\n")

    def answers(messages):
        """All of them, as facts or errors."""
        away = False
        while messages:
            try:
                replies = transport.poll()
            except ConnectionError as error:
                if not away:
                    say("away", str(error))
                away = True
                continue
            for reply in replies:
                what = messages.pop(reply.message)
                told = reply.error or {**envelope.facts(reply.body), "bytes": len(reply.body)}
                say(what, reply.node, told)
                yield what, reply.node, told
            time.sleep(0.05)

    while len(transport.nodes()) < 2:
        time.sleep(0.1)
    nodes = {}
    greetings = {transport.push(each, envelope.plain("hello"), 300): "hello" for each in transport.nodes()}
    for _, node, told in answers(greetings):
        nodes[told["name"]] = node
    large = {transport.push(nodes["own"], envelope.plain("big") + bytes(6_000_000), 300): "big"}
    large[transport.push(nodes["own"], envelope.plain("huge"), 300)] = "huge"
    list(answers(large))
    jobs = {transport.push(each, envelope.plain("train"), 300): "train" for each in nodes.values()}
    jobs[transport.push(nodes["own"], envelope.plain("interrupt"), 300)] = "interrupt"
    list(answers(jobs))
    say("done", folder.name)


app = serverapp(serve)
'''


class Site:
    """Answers as a silo would; a training ends when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.training, self.done, self.interrupted = (threading.Event() for _ in range(3))

    def __call__(self, body: bytes) -> bytes:
        kind = envelope.facts(body)["kind"]
        if kind == "train":
            self.training.set()
            assert self.done.wait(60)
        elif kind == "interrupt":
            self.interrupted.set()
        more = {"big": bytes(6_000_000), "huge": bytes(8_000_000)}.get(kind, b"")
        return envelope.plain("of " + kind, name=self.name, got=len(body)) + more


def test_messages_travel_and_a_superlink_may_die(tmp_path: Path) -> None:
    stock, own = Site("stock"), Site("own")
    out = tmp_path / "out.jsonl"

    def told() -> list[Any]:
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    def said(what: str) -> list[Any]:
        return [each for each in told() if each[0] == what]

    with short_folder() as sockets, flower(tmp_path) as here:
        silos = [Silo(str(sockets / site.name), site).start() for site in (stock, own)]

        def why() -> str:
            return f"{told()}\n{here.logs()}"

        here.superlink()
        here.superexec()
        here.stock_node("stock", silos[0].path)
        here.own_node("own", silos[1].path)
        until(here.reachable, 30, here.logs)
        here.run(SERVER, out)
        until(lambda: all(event.is_set() for event in (stock.training, own.training, own.interrupted)), 60, why)
        here.kill("superlink")
        until(lambda: bool(said("away")), 30, why)
        stock.done.set()
        own.done.set()
        here.superlink()
        until(lambda: bool(said("done")), 60, why)

        assert {each[2]["name"] for each in said("hello")} == {"stock", "own"}
        assert {each[2]["name"] for each in said("train")} == {"stock", "own"}
        ((_, node, fact),) = said("big")
        assert fact["got"] > 6_000_000
        assert fact["bytes"] > 6_000_000
        assert said("huge")[0][2].endswith("at most 7,000,000 are allowed")
        assert said("interrupt")[0][1] == node
        assert "cannot be reached" in said("away")[0][1]
        assert said("done") == [["done", "app"]]

        here.processes["own"].send_signal(signal.SIGTERM)
        assert here.processes["own"].wait(timeout=30) == 0
        for silo in silos:
            silo.stop()
