"""Seconds that a message of a deployment takes beside the site's own work, and seconds of the default deployment.

python benchmarks/deploy.py [--messages 20] [--large] [--no-app]

A server and two sites run on this machine with TLS and keys, one with Flower's own node, one with ours; beside them,
the loopback in one process. The server sends messages in turn, one at a time, and looks for an answer every 0.1 s, as
`poll_seconds` of deploy.yaml says. An answer is as large as its message; a silo that does no work makes it, and tells
how long it took, which is subtracted. With --large, messages of 45 MB follow, a quarter as many. Then `fedkeel deploy
new` and `fedkeel deploy local` are timed, with its four sites and five rounds, both ways.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from fedkeel.deploy import identity, local, programs, project
from fedkeel.deploy.node import Node, NodeOptions, meeting_place
from fedkeel.deploy.places import Beside
from fedkeel.deploy.programs import Link
from fedkeel.deploy.server import Server
from fedkeel.deploy.service import listen
from fedkeel.deploy.supervisor import Supervisor
from fedkeel.runner.stopping import Stop
from fedkeel.world.remote import envelope
from fedkeel.world.remote.loopback import Loopback
from fedkeel.world.remote.transport import Transport

TINY, LARGE = 30_000, 45_000_000
"""Bytes: a linear model, and ResNet-18."""
POLL = 0.1
STOCK, OWN, LOOPBACK = "stock", "own", "loopback"
PLAN = "plan.json"
SERVER_APP = f"""
import sys

sys.path.insert(0, {str(Path(__file__).parent)!r})

from deploy import serve
from fedkeel.world.flower.serverapp import serverapp

app = serverapp(serve)
"""
Times = dict[str, dict[str, list[float]]]
"""By node and bytes: seconds."""


def answer(name: str, body: bytes) -> bytes:
    """What a silo without work says: as many bytes as it got."""
    begun = time.monotonic()
    more = bytes(max(0, len(body) - 200))
    return envelope.plain("echo", name=name, seconds=time.monotonic() - begun) + more


def measure(transport: Transport, sizes: Sequence[tuple[int, int]], names: Sequence[str]) -> Times:
    """Send so many messages of so many bytes to each node, in turn; the first of each size does not count."""
    while len(transport.nodes()) < len(names):
        time.sleep(POLL)
    nodes = {}
    for node in transport.nodes():
        _, told = _asked(transport, node, envelope.plain("hello"))
        nodes[str(told["name"])] = node
    times: Times = {name: {} for name in names}
    for size, count in sizes:
        body = envelope.plain("echo") + bytes(size)
        for number in range(count + 1):
            for name in names:
                seconds, told = _asked(transport, nodes[name], body)
                if number:
                    times[name].setdefault(str(size), []).append(seconds - float(str(told["seconds"])))
    return times


def _asked(transport: Transport, node: int, body: bytes) -> tuple[float, dict[str, object]]:
    begun = time.monotonic()
    name = transport.push(node, body, 600.0)
    while True:
        for reply in transport.poll():
            if reply.message == name and reply.body is not None:
                return time.monotonic() - begun, envelope.facts(reply.body)
            raise SystemExit(f"a message failed: {reply.error}")
        time.sleep(POLL)


def serve(transport: Transport, app: Path, out: Path, _: int | None, **__: Stop) -> None:
    """The server function: Flower starts it."""
    out.mkdir(parents=True)
    (out / "experiment.yaml").touch()
    times = measure(transport, json.loads((app / PLAN).read_text()), [STOCK, OWN])
    partial = out / "summary.partial"
    partial.write_text(json.dumps(times))
    partial.rename(out / "summary.json")


def over_flower(root: Path, sizes: Sequence[tuple[int, int]]) -> Times:
    """With real processes."""
    app, out = root / "app", root / "run"
    project.new(app, sites=[STOCK, OWN])
    (app / "flower_app" / "server_app.py").write_text(SERVER_APP)
    (app / PLAN).write_text(json.dumps(sizes))
    beside = Beside(out)
    beside.make()
    keys = local._keys(beside, (STOCK, OWN))
    link = Link("127.0.0.1", programs.free_port(), keys)
    programs.silo = _silo
    with meeting_place() as sockets, Supervisor(_tell) as supervisor:
        server = Server(supervisor, link, beside, app, False, _tell)
        nodes = []
        for name in (STOCK, OWN):
            site = NodeOptions(app, name, link.near, keys.ca, local._private(beside, name), state=root / name)
            identity.private_folder(site.folder)
            nodes.append(Node(supervisor, replace(site, fast=name == OWN), sockets / name))
        local._start(supervisor, server, nodes, keys, _tell)
        server.finish()
    told: Times = json.loads((out / "summary.json").read_text())
    return told


def _tell(sentence: str) -> None:
    print(f"fedkeel: {sentence}", file=sys.stderr, flush=True)


def _silo(_: Path, site: str, socket: Path, *__: Path | None) -> tuple[str, ...]:
    return (sys.executable, __file__, "--silo", site, str(socket))


def in_process(sizes: Sequence[tuple[int, int]]) -> Times:
    """The same over the loopback."""
    transport = Loopback({1: lambda body: answer(LOOPBACK, body)})
    try:
        return measure(transport, sizes, [LOOPBACK])
    finally:
        transport.close()


def default_app(root: Path, fast: bool) -> float:
    """Seconds of the deployment that `fedkeel deploy new` makes."""
    app = root / f"default-{fast}"
    project.new(app)
    command = [sys.executable, "-m", "fedkeel", "deploy", "local", str(app), "--quiet", *(["--fast"] if fast else [])]
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--no-app", action="store_true")
    parser.add_argument("--silo", nargs=2, metavar=("NAME", "SOCKET"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.silo:
        name, path = asked.silo
        listen(Path(path), lambda body: answer(name, body), lambda: print("ready", flush=True))
    sizes = [(TINY, asked.messages), *([(LARGE, max(1, asked.messages // 4))] if asked.large else [])]
    with tempfile.TemporaryDirectory(prefix="fk-") as folder:
        times = in_process(sizes) | over_flower(Path(folder), sizes)
        load = os.getloadavg()[0]
        print("| seconds beside the site's work | messages | stock node | own node | loopback |")
        print("|---" + "|--:" * 4 + "|")
        for size, count in sizes:
            cells = [times[name][str(size)] for name in (STOCK, OWN, LOOPBACK)]
            shown = [f"{median(cell):.2f} ({min(cell):.2f} to {max(cell):.2f})" for cell in cells]
            print(f"| message of {size:,} bytes | {count} | {' | '.join(shown)} |")
        if not asked.no_app:
            taken = [default_app(Path(folder), fast) for fast in (False, True)]
            print(f"| default deployment | | {' | '.join(f'{each:.0f}' for each in taken)} | |")
    last = os.getloadavg()[0]
    print(f"\nMedian (range). {os.cpu_count()} cores; load {load:.1f} after the messages, {last:.1f} at the end.")


if __name__ == "__main__":
    main()
