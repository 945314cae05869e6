"""Kills runs with SIGKILL at random moments, resumes them, and compares them with runs that were never killed.

python scripts/kills.py [--kills 200] [--seed 0] [--jobs 2] [--spawn] [--only fedasmu ...]
python scripts/kills.py --compare [--kills 20] [--seed 0] [--jobs 1] [--spawn]
python scripts/kills.py --deployed [--kills 50] [--seed 0] [--fast]

Every kill is a test of its own: a run is started, killed at a random moment, and resumed until it is complete; in every
third test the resumed run is killed as well. The moment is drawn from the time between the first and the last file of a
whole run; in every tenth test, from all of its time. What is then in the run folder must be what the undisturbed run
left, byte for byte, times aside, with nothing temporary beside it and no process left.
With --compare, whole comparisons are killed instead, and their tables are compared. With --deployed, one process of a
deployment with Flower is killed, or all of it; --fast leaves out Flower's own nodes.
Runs are forked from a process that has loaded everything, so that kills do not fall upon imports; with --spawn they are
commands as a user gives them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fedkeel import api, cli
from fedkeel.cli import display
from fedkeel.local.native import library
from fedkeel.report import curves

LOADED = (api, display, curves)  # beforehand: what is forked has them

COMMON = [
    "dataset.train_limit=600", "dataset.test_limit=200", "partition=dirichlet", "clients=12", "per_round=4",
    "rounds=12", "local.epochs=3", "local.batch_size=8", "fleet.speed_ratio=5", "fleet.uplink_mbps=5",
    "checkpoint.rounds=1",
]  # fmt: skip
FAULTS = [
    "fleet.dropout=0.05", "faults.hang=0.05", "faults.hang_seconds=30", "faults.lost_upload=0.05", "faults.twice=0.05",
    "faults.old_job=0.05", "faults.corrupt=0.05",
]  # fmt: skip
SERIAL = ["executor.kind=serial", "executor.stack=0", "executor.channels_last=false"]
STACKS = ["executor.kind=vectorised", "executor.stack=4", "executor.channels_last=false"]
WORKERS = ["executor.kind=processes", "executor.stack=2", "executor.channels_last=false", "executor.workers=2"]
THREADS = ["executor.kind=threads", "executor.stack=4", "executor.channels_last=false", "executor.workers=2"]
"""Which native kernels have."""
CASES = {
    "fedavg": ["algorithm=fedavg", "model=mlp-400", *WORKERS, *FAULTS],
    "scaffold": ["algorithm=scaffold", "model=mlp-400", *STACKS, *FAULTS],
    "fedadam": ["algorithm=fedadam", "algorithm.server_lr=0.01", "model=lenet5", *SERIAL],
    "fedagg": ["algorithm=fedagg", "model=linear", *STACKS],
    "fedlga": ["algorithm=fedlga", "model=mlp-400", "fleet.rho=0.5", *STACKS, "schedule.deadline_seconds=60"],
    "fedasmu": ["algorithm=fedasmu", "model=mlp-400", *STACKS, *FAULTS],
    "fedbuff": ["algorithm=fedbuff", "model=linear", *WORKERS, *FAULTS],
    "native": ["algorithm=fedavg", "model=lenet5", "local.momentum=0.5", *THREADS, *FAULTS],
}
"""What is run: the methods, every executor, with and without faults of the fleet."""
if library.absence():
    CASES = {name: words for name, words in CASES.items() if "executor.kind=threads" not in words}
ROWS = ("history", "clients", "rounds", "unfinished", "refused")
PATIENCE = 120.0

Start = Callable[[Sequence[str], Path], int]
"""Begins a command with its output in a file; returns its process's id, which is also that of its session."""


def fork(words: Sequence[str], log: Path) -> int:
    """A copy of this process."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(out, stream)
        sys.argv = ["fedkeel", *words]
        cli.main()
        os._exit(0)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(99)


def spawn(words: Sequence[str], log: Path) -> int:
    """A process as a shell would start it."""
    command = [sys.executable, "-m", "fedkeel", *words]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True).pid


def wait(process: int, seconds: float) -> int | None:
    """Its exit code, negative for a signal; nothing if it still runs after so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def survivors(session: int) -> list[int]:
    """Processes of that session that are not dead."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = entry.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state not in "ZX":
            found.append(int(entry.parent.name))
    return found


def nobody_left(session: int) -> bool:
    """Whether they all die within ten seconds."""
    end = time.monotonic() + 10
    while survivors(session) and time.monotonic() < end:
        time.sleep(0.01)
    return not survivors(session)


@dataclass(frozen=True)
class Kind:
    """What is killed."""

    option: str
    """Of the command, before the folder's name."""
    first: str
    """What is there early."""
    last: str
    """What is there at the end."""
    stage: Callable[[Path], str]
    """How far a folder is."""
    differences: Callable[[Path, Path], list[str]]
    """What two folders do not have in common."""


@dataclass(frozen=True)
class Whole:
    """A run that nobody disturbed, or a comparison."""

    words: list[str]
    folder: Path
    seconds: float
    recorded: float
    """Of these, from its first file to its last."""
    kind: Kind


def undisturbed(name: str, root: Path, start: Start) -> Whole:
    """Run a case from its beginning to its end."""
    kind = Kind("--resume", "experiment.yaml", "summary.json", stage, differences)
    return measured(kind, ["run", *COMMON, *CASES[name]], root / name, start)


def measured(kind: Kind, words: list[str], root: Path, start: Start) -> Whole:
    """Give a command, and measure how long it takes."""
    folder, log = root / "whole", root / "whole.log"
    root.mkdir()
    began = time.monotonic()
    process = start([*words, kind.option, str(folder)], log)
    until_there(folder / kind.first)
    begun = time.monotonic()
    until_there(folder / kind.last)
    complete = time.monotonic()
    code = wait(process, PATIENCE)
    if code != 0:
        raise SystemExit(f"{root.name}: what was not disturbed ended with {code}:\n{log.read_text()}")
    return Whole(words, folder, time.monotonic() - began, complete - begun, kind)


def until_there(path: Path) -> None:
    """Wait until a file exists, or for a minute."""
    end = time.monotonic() + PATIENCE / 2
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.002)


def one_kill(whole: Whole, number: int, seed: int, start: Start) -> tuple[str, list[str]]:
    """(Where the run was when it was killed, what is wrong with what came out)."""
    draw = random.Random(f"{seed}/{number}")
    folder, log = whole.folder.parent / f"{number}", whole.folder.parent / f"{number}.log"
    command, kills, where = [*whole.words, whole.kind.option, str(folder)], 0, ""
    for attempt in range(50):
        process = start(command, log)
        killing, early = kills < (2 if number % 3 == 2 else 1), number % 10 == 9
        if killing and not early:
            until_there(folder / whole.kind.first)
        code = wait(process, draw.uniform(0, whole.seconds if early else whole.recorded) if killing else PATIENCE)
        if code is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            if not killing:
                return where, [f"it did not end within {PATIENCE:g} s"]
            if not nobody_left(process):
                return where, [f"processes were left: {survivors(process)}"]
            kills += 1
            where = where or whole.kind.stage(folder)
        elif code == 0 and kills:
            break
        elif code == 0:  # it was over before it could be killed
            shutil.rmtree(folder)
        else:
            return where, [f"attempt {attempt} ended with {code}: {log.read_text()[-2000:]}"]
    wrong = whole.kind.differences(whole.folder, folder)
    if not wrong:
        shutil.rmtree(folder)
    return where, wrong


def stage(folder: Path) -> str:
    """How far a killed run had come."""
    if not (folder / "experiment.yaml").exists():
        return "before the run began"
    if (folder / "summary.json").exists():
        return "after the summary"
    kept = folder / "checkpoint"
    if kept.exists() and any(path.name.startswith(".") for path in kept.iterdir()):
        return "while a checkpoint was written or removed"
    if kept.exists() and any(kept.iterdir()):
        return "between checkpoints"
    return "before the first checkpoint"


def differences(one: Path, other: Path) -> list[str]:
    """What two run folders do not have in common."""
    wrong = [f"{name}.jsonl differs" for name in ROWS if rows(one, name) != rows(other, name)]
    model = "model.safetensors"
    if (one / model).read_bytes() != (other / model).read_bytes():
        wrong.append(f"{model} differs")
    if summary(one) != summary(other):
        wrong.append("summary.json differs")
    inside = [sorted(str(path.relative_to(root)) for path in root.rglob("*")) for root in (one, other)]
    if inside[0] != inside[1]:
        wrong.append(f"other files: {sorted(set(inside[0]) ^ set(inside[1]))}")
    return wrong


def rows(folder: Path, name: str) -> str:
    """Without the real times that are in it."""
    return re.sub(r'"wall_seconds": [^,}]+', "", (folder / f"{name}.jsonl").read_text())


def summary(folder: Path) -> dict[str, object]:
    """The same."""
    told: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return {name: value for name, value in told.items() if "second" not in name or "virtual" in name}


def main() -> int:
    """Kill, resume, compare, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--deployed", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--only", nargs="*", choices=[*CASES], default=[*CASES])
    asked = parser.parse_args()
    start = spawn if asked.spawn else fork
    root = Path(tempfile.mkdtemp(prefix="fedkeel-kills-"))
    if asked.deployed:
        from kill_deployments import deployed

        came_out = deployed(asked.kills or 50, asked.seed, asked.fast, root)
        if came_out:
            shutil.rmtree(root)
        return int(not came_out)
    if asked.compare:
        from kill_comparisons import comparison

        wholes = {"comparison": comparison(root, start)}
    else:
        wholes = {name: undisturbed(name, root, start) for name in asked.only}
    total = asked.kills or (20 if asked.compare else 200)
    order = [[*wholes][number % len(wholes)] for number in range(total)]
    stages: Counter[str] = Counter()
    good: Counter[str] = Counter()
    failed = False
    with ThreadPoolExecutor(asked.jobs or (1 if asked.compare else 2)) as pool:
        tests = [pool.submit(one_kill, wholes[name], number, asked.seed, start) for number, name in enumerate(order)]
        for number, (name, test) in enumerate(zip(order, tests, strict=True)):
            where, wrong = test.result()
            stages[where] += 1
            good[name] += not wrong
            failed = failed or bool(wrong)
            if wrong:
                print(
                    f"kill {number}, {name}, {where}: {'; '.join(wrong)} ({wholes[name].folder.parent / str(number)})"
                )
    for name, count in Counter(order).items():
        print(f"{name:10} {good[name]:3} of {count}  ({wholes[name].seconds:.1f} s undisturbed)")
    for where, count in stages.most_common():
        print(f"{count:4} killed {where}")
    print(f"{sum(good.values())} of {total} came out as if they had not been killed")
    if not failed:
        shutil.rmtree(root)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
