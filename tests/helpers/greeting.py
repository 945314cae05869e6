"""A deployment with a server function, a relay and silos that only say hello, for real processes of Flower."""

from __future__ import annotations

import sys
from pathlib import Path

from fedkeel.deploy import project

SERVER_APP = """
import json
import os
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

from fedkeel.deploy.prepared import Project
from fedkeel.errors import InputError
from fedkeel.world.remote import envelope

app = ServerApp()


@app.main()
def main(grid, context):
    out = Path(context.run_config["out"])
    folder = Path(context.run_config["app"])
    plan = json.loads((folder / "plan.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    (out / "experiment.yaml").write_text(Project.load(folder).experiment.to_yaml())
    (out / "deployment.json").touch()
    starts = out / "starts"
    count = int(starts.read_text()) + 1 if starts.exists() else 1
    starts.write_text(str(count))
    print(f"fedkeel: start {count}", flush=True)
    if plan.get("wrong"):
        raise InputError(plan["wrong"])
    if count <= plan.get("kills", 0):
        os.kill(os.getpid(), 9)
    if plan.get("stays"):
        time.sleep(600)
    while len(nodes := [*grid.get_node_ids()]) < plan["nodes"]:
        time.sleep(0.1)
    content = RecordDict({"m": ConfigRecord({"body": envelope.plain("hello")})})
    waiting = {*grid.push_messages([Message(content, node, "query", ttl=300) for node in nodes])}
    names = []
    while waiting:
        for reply in grid.pull_messages([*waiting]):
            waiting.discard(reply.metadata.reply_to_message_id)
            names.append(envelope.facts(reply.content["m"]["body"])["site"])
        time.sleep(0.1)
    partial = out / "summary.partial"
    partial.write_text(json.dumps({"names": sorted(names)}))
    partial.rename(out / "summary.json")
"""
CLIENT_APP = """
import socket

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedkeel.world.remote import envelope

app = ClientApp()


@app.query()
def query(message, context):
    with socket.socket(socket.AF_UNIX) as silo:
        silo.connect(str(context.node_config["silo"]))
        envelope.send(silo, message.content["m"]["body"])
        body = envelope.receive(silo, 1_000_000)
    return Message(RecordDict({"m": ConfigRecord({"body": body})}), reply_to=message)
"""
SILO = """
import os, socket, sys
from fedkeel.world.remote import envelope
site, path = sys.argv[1:]
if os.path.exists(path):
    os.unlink(path)
with socket.socket(socket.AF_UNIX) as server:
    server.bind(path)
    server.listen()
    print("ready", flush=True)
    while True:
        came, _ = server.accept()
        with came:
            kind = envelope.facts(envelope.receive(came, 1_000_000))["kind"]
            envelope.send(came, envelope.plain(kind, site=site))
"""


COMMAND = """
from fedkeel.cli import deploy, main
from fedkeel.deploy import programs
from tests.helpers import greeting

programs.silo = greeting.silo
deploy._result = lambda *_: None
main()
"""
"""fedkeel, with these silos; there is no model and no history to show at the end."""


def silo(_: Path, site: str, socket: Path, *__: Path | None) -> tuple[str, ...]:
    """In place of `programs.silo`."""
    return (sys.executable, "-c", SILO, site, str(socket))


def new_app(app: Path, nodes: int, plan: str = "") -> None:
    """A project whose Flower app is that of this file."""
    project.new(app, nodes=nodes)
    (app / "flower_app" / "server_app.py").write_text(SERVER_APP)
    (app / "flower_app" / "client_app.py").write_text(CLIENT_APP)
    (app / "plan.json").write_text(f'{{"nodes": {nodes}{plan}}}')


def left(folder: Path) -> list[int]:
    """Processes of Flower that use this folder as theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FLWR_HOME={folder}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
