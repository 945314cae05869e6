"""What `kills.py --deployed` kills: one process of a deployment on this machine, at a random moment.

After the kill the command must end by itself, within `PATIENCE` seconds; if the command itself was killed, all its
processes must end within `ALONE` seconds, and the same command is given again. Then the run folder must have the files
of an undisturbed run and nothing else, all rounds must be recorded, and no process may be left. Methods that work in
rounds must lose no job, as a site whose job was lost is given it again, and the limits in `DEPLOY` leave time for that.
They must come out with the weights of the simulation, bit for bit. There is one exception, which is told: a node that
was killed between two jobs may miss the rounds that begin while it is away; these follow one another. Asynchronous
methods depend on who answers first, so theirs may differ.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from fedkeel import Experiment, api
from fedkeel.deploy import project
from fedkeel.deploy.places import Beside
from fedkeel.record.folder import begun, complete

SITES, ROUNDS = 2, 6
COMMON = [
    "dataset.train_limit=1200", "dataset.test_limit=200", "partition=dirichlet", "model=mlp-400", f"rounds={ROUNDS}",
    "local.batch_size=8", "local.epochs=3", "threads=1",
]  # fmt: skip
ROUNDWISE = {"scaffold", "fedavg", "fedent"}
"""Methods whose weights do not depend on who answers first."""
CASES: dict[str, list[str]] = {
    "scaffold": [], "fedbuff": [], "fedavg": [], "fedasmu": ["schedule.trigger_seconds=1"], "fedent": [],
}  # fmt: skip
DEPLOY = {"first_job_seconds": 300, "least_job_seconds": 150, "retries": 5}
OWN = ("silo", "node", "superlink", "superexec", "serverapp", "everything")
STOCK = ("relay", "node", "silo", "node's superexec", "superlink")
"""What is killed with our own nodes, and with those of Flower."""
EVERY_STOCK = 5
"""One in so many tests has Flower's nodes."""
PATIENCE, ALONE = 300.0, 30.0
HALF = (".partial", ".tmp")
MODEL_FILE = "model.safetensors"
_CHECKPOINTS = [f"checkpoint/round-{number}" for number in (ROUNDS - 1, ROUNDS)]
FILES = frozenset(f"/{name}" for name in (
    "best_model.safetensors", "checkpoint", *_CHECKPOINTS, *(f"{each}/state.json" for each in _CHECKPOINTS),
    *(f"{each}/tensors.safetensors" for each in _CHECKPOINTS), "clients.jsonl", "deployment.json", "experiment.yaml",
    "history.jsonl", "labels.json", "learning_curve.png", "learning_curve.svg", MODEL_FILE, "refused.jsonl",
    "rounds.jsonl", "run.json", "summary.json", "unfinished.jsonl",
))  # fmt: skip
"""Of a complete deployment whose settings are these."""
_TAG = "FEDKEEL_KILLS"
"""A variable by which all processes of a deployment are known."""
_WORDS = {
    "silo": "fedkeel.deploy.service",
    "relay": "flwr-clientapp",
    "superlink": "flower-superlink",
    "serverapp": "flwr-serverapp",
}


@dataclass(frozen=True)
class Whole:
    """A deployment that nobody disturbed."""

    app: Path
    folder: Path
    seconds: float
    recorded: float
    """Of these, from the first file of its run to the last."""
    files: frozenset[str]
    """Of its run."""
    weights: bytes | None
    """Of the simulation, if they must be met."""
    fast: bool


@dataclass(frozen=True)
class Killed:
    """What came of a kill."""

    kind: str
    stage: str
    seconds: float
    """More than the undisturbed deployment took."""
    wrong: tuple[str, ...] = ()
    fewer: int = 0
    """Rounds that went on without the node that was killed."""


def begin(whole_app: Path, out: Path, fast: bool) -> subprocess.Popen[bytes]:
    """Start a deployment, or go on with it."""
    words = [sys.executable, "-m", "fedkeel", "deploy", "local", str(whole_app), "--out", str(out)]
    with out.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [*words, *(["--fast"] if fast else [])],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | {_TAG: str(out)}, start_new_session=True,
        )  # fmt: skip


def processes(out: Path) -> dict[int, tuple[str, str]]:
    """The living processes of a deployment: their command lines, and where Flower's files are for them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            pairs = dict(pair.partition("=")[::2] for pair in (path / "environ").read_text().split("\0"))
            words = (path / "cmdline").read_text().replace("\0", " ")
        except (OSError, UnicodeDecodeError):
            continue
        if pairs.get(_TAG) == str(out):
            found[int(path.name)] = words, pairs.get("FLWR_HOME", "")
    return found


def of_kind(kind: str, out: Path) -> list[int]:
    """The processes that are called so."""
    server = str(Beside(out).home)

    def is_one(words: str, home: str) -> bool:
        if kind == "node":
            return "fleetnode" in words or "flower-supernode" in words
        if kind.endswith("superexec"):
            return "flower-superexec" in words and (home == server) == (kind == "superexec")
        return _WORDS[kind] in words

    return sorted(pid for pid, told in processes(out).items() if is_one(*told))


def at_work(node: str) -> bool:
    """Whether the node with this command line waits for its silo: then its socket has a connection."""
    silo = re.search(r'silo[ =]"?([^" ]+)', node)
    table = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return silo is not None and any(row[-1] == silo[1] and row[5] == "03" for row in table)


def until(so: Callable[[], object], seconds: float) -> bool:
    """Wait for something; whether it is so."""
    end = time.monotonic() + seconds
    while not so():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def stage(out: Path) -> str:
    """How far a deployment is."""
    if complete(out):
        return "complete"
    if not begun(out):
        return "joining" if of_kind("serverapp", out) else "starting"
    return f"round {len(rounds(out)) + 1}"


def prepared(name: str, home: Path) -> tuple[Path, bytes | None]:
    """A deployment's folder, and the weights that must come out of it."""
    app = home / "app"
    project.new(app, None, [*COMMON, f"algorithm={name}", *CASES[name]], nodes=SITES)
    described = yaml.safe_load((app / "deploy.yaml").read_text())
    (app / "deploy.yaml").write_text(yaml.safe_dump({**described, **DEPLOY}))
    if name not in ROUNDWISE:
        return app, None
    api.run(Experiment.load(app / "experiment.yaml"), home / "simulated")
    return app, (home / "simulated" / MODEL_FILE).read_bytes()


def undisturbed(name: str, root: Path, fast: bool) -> Whole:
    """Simulate a method, and deploy it with nobody in its way."""
    home = root / f"{name}{'' if fast else '-stock'}"
    home.mkdir()
    app, weights = prepared(name, home)
    out, began = home / "whole", time.monotonic()
    running = begin(app, out, fast)
    until(lambda: begun(out) or running.poll() is not None, PATIENCE)
    first = time.monotonic()
    until(lambda: complete(out) or running.poll() is not None, PATIENCE)
    last = time.monotonic()
    running.wait(PATIENCE)
    whole = Whole(app, out, time.monotonic() - began, last - first, frozenset(files(out)), weights, fast)
    wrong = differences(whole, out, equal=True)
    if running.returncode or wrong:
        raise SystemExit(f"{home.name}, not disturbed: {running.returncode}, {wrong}\n{said(out)}")
    return whole


def supposed(name: str, root: Path, fast: bool) -> Whole:
    """The same without deploying it; its rounds take two seconds or more."""
    app, weights = prepared(name, root)
    return Whole(app, root / "whole", 0.0, 2.0, FILES, weights, fast)


def said(out: Path) -> str:
    """The end of what the command told."""
    return out.with_suffix(".log").read_text()[-2000:]


def files(out: Path) -> list[str]:
    """All of a run folder, and what is half-written beside it."""
    beside = [path for path in Beside(out).folder.rglob("*") if path.suffix in HALF]
    return [str(path.relative_to(out.parent)).removeprefix(out.name) for path in [*out.rglob("*"), *beside]]


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    """Of a table of the run folder."""
    path = out / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rounds(out: Path) -> list[int]:
    """How many sites' uploads each round has."""
    return [row["arrived"] for row in rows(out, "rounds")]


def _missed(out: Path) -> list[int]:
    """The rounds that lack a site, from 0."""
    return [at for at, count in enumerate(rounds(out)) if count < SITES]


def differences(whole: Whole, out: Path, equal: bool) -> list[str]:
    """What is not as it was to be; `equal` if the weights must be those of the simulation."""
    wrong = [f"other files: {odd}"] if (odd := sorted(whole.files ^ {*files(out)})) else []
    wrong += [f"half-written: {each}" for each in files(out) if each.endswith(HALF)]
    if not complete(out):
        return [*wrong, "it is not complete"]
    if equal and whole.weights is not None and (out / MODEL_FILE).read_bytes() != whole.weights:
        wrong.append("the weights are not those of the simulation")
    if len(rounds(out)) != ROUNDS:
        wrong.append(f"{len(rounds(out))} rounds are recorded")
    if not until(lambda: not processes(out), 10):
        wrong.append(f"processes were left: {processes(out)}")
    return wrong


def one_kill(whole: Whole, number: int, seed: int, kind: str, busy: bool = False) -> Killed:
    """Deploy, kill, wait, look. With `busy`, a node is killed while it has a job, so it may miss no round."""
    draw = random.Random(f"{seed}/{number}")
    out = whole.folder.with_name(str(number))
    while True:
        began = time.monotonic()
        running = begin(whole.app, out, whole.fast)
        where = _disturb(running, out, kind, draw, whole, early=number % 4 == 3, busy=busy)
        if where is not None:
            break
        running.wait()  # it was over before
        for path in (out, Beside(out).folder):
            shutil.rmtree(path, ignore_errors=True)
    wrong: list[str] = []
    if kind == "everything":
        running.wait()
        if not until(lambda: not processes(out), ALONE):
            wrong.append(f"processes were left: {processes(out)}")
        running = begin(whole.app, out, whole.fast)
    try:
        running.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        wrong.append(f"it did not end within {PATIENCE:g} s: {said(out)}")
        running.send_signal(signal.SIGTERM)
        running.wait(60)
    took = time.monotonic() - began
    if running.returncode:
        wrong.append(f"it ended with {running.returncode}: {said(out)}")
    missed = _missed(out) if whole.weights is not None and kind == "node" else []
    wrong += differences(whole, out, equal=busy or not missed)
    if missed and (missed[-1] - missed[0] >= len(missed) or rows(out, "unfinished")):
        wrong.append(
            f"more is missing than the rounds that began without the node: {rows(out, 'unfinished')}, {missed}"
        )
    if not wrong:
        for path in (out, Beside(out).folder):
            shutil.rmtree(path)
    return Killed(kind, where, took - whole.seconds, tuple(wrong), len(missed))


def _disturb(
    running: subprocess.Popen[bytes], out: Path, kind: str, draw: random.Random, whole: Whole, early: bool, busy: bool
) -> str | None:
    """Kill a process at a random moment: where the run was then; None if it was over before."""

    def found() -> list[int]:
        if kind == "everything":
            return [running.pid]
        told = processes(out)
        return [pid for pid in of_kind(kind, out) if not busy or at_work(told.get(pid, ("", ""))[0])]

    if not early:
        until(lambda: begun(out) or running.poll() is not None, PATIENCE)
    time.sleep(draw.uniform(0, whole.seconds if early else whole.recorded))
    until(lambda: found() or running.poll() is not None, PATIENCE)
    where, those = stage(out), found()
    if not those or where == "complete" or running.poll() is not None:
        return None
    try:
        os.kill(draw.choice(those), signal.SIGKILL)
    except ProcessLookupError:
        return None
    return where


def plan(count: int, fast: bool) -> list[tuple[str, str, bool]]:
    """The tests: method, what is killed, and whether nodes are ours."""
    tests = []
    for number in range(count):
        own = fast or number % EVERY_STOCK != EVERY_STOCK - 1
        kinds = OWN if own else STOCK
        turn = number // EVERY_STOCK if not own else number - number // EVERY_STOCK * (not fast)
        name = [*CASES][(turn + turn // len(kinds)) % len(CASES) if own else turn % 2]
        tests.append((name, kinds[turn % len(kinds)], own))
    return tests


def deployed(count: int, seed: int, fast: bool, root: Path) -> bool:
    """Kill so many times, and tell of each; whether all came out well."""
    wholes: dict[tuple[str, bool], Whole] = {}
    results = []
    for number, (name, kind, own) in enumerate(plan(count, fast)):
        if (name, own) not in wholes:
            wholes[name, own] = undisturbed(name, root, own)
            print(f"{name}, {_nodes(own)}, not disturbed: {wholes[name, own].seconds:.1f} s", flush=True)
        killed = one_kill(wholes[name, own], number, seed, kind)
        results.append((own, killed))
        told = f"kill {number}: {kind} of {name}, {_nodes(own)}, {killed.stage}: {killed.seconds:+.1f} s"
        told += f", {killed.fewer} rounds without the node" if killed.fewer else ""
        print(f"{told}{', wrong: ' + '; '.join(killed.wrong) if killed.wrong else ''}", flush=True)
    print("\n| killed | nodes | count | passed | with fewer | median cost, s | worst, s |\n|---|---|" + "--:|" * 5)
    for own, kind in dict.fromkeys((own, killed.kind) for own, killed in results):
        those = [killed for whose, killed in results if (whose, killed.kind) == (own, kind)]
        costs, good = [each.seconds for each in those], sum(not each.wrong for each in those)
        fewer = sum(each.fewer > 0 for each in those)
        row = (kind, _nodes(own), len(those), good, fewer, f"{median(costs):.1f}", f"{max(costs):.1f}")
        print(f"| {' | '.join(map(str, row))} |")
    return not any(killed.wrong for _, killed in results)


def _nodes(own: bool) -> str:
    return "own" if own else "stock"
