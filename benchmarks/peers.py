"""Seconds a round of the same work: fedkeel, Flower's simulation, pfl-research and the bare loops.

    benchmarks/install_peers.sh DIR
    python benchmarks/peers.py DIR [--only W1,W2] [--loop both] [--repeats 3] [--set executor=serial] [--json FILE]

Every contender runs in a process of its own, one after the other, over and over. Of each process the median of its
rounds counts, without set-up and the first two rounds; of a contender the median of its processes. The peers' clients
train with the plain bare loop, as most people's would, or with the tuned one, so that what differs is the framework
around it; how each is set up stands in `peers/`. fedkeel chooses its executor anew in each process.
P1 is pfl-research's own benchmark, see `workloads.py`. A round of W5 takes Flower half a minute: it is left out there,
unless it is the only one that `--contenders` names. What failed is tried again, twice, and recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bare import LOOP, BareLoop, seconds
from rich.console import Console
from rich.table import Table
from speed import compact, machine, now
from workloads import ALL, add_choice, fresh_choices

import fedkeel

HERE = Path(__file__).resolve().parent
ROUNDS = {"W1": 7, "W2": 15, "W3": 15, "W4": 5, "W5": 7, "P1": 3, "P2": 3}
ATTEMPTS = 3
LEFT_OUT = {"W5": ("flower",)}
WARM_UP = 2
Run = dict[str, Any]


def run_bare(tricks: bool, threads: int, name: str, rounds: int, overrides: Sequence[str]) -> Run:
    workload = ALL[name]
    loop = BareLoop(workload.experiment(1, overrides), workload.data(), tricks)
    taken = [seconds(loop, range(workload.per_round), threads) for _ in range(rounds)]
    return {"version": "", "how": f"1 process of {threads} thread(s)", "seconds": taken}


def run_fedkeel(name: str, rounds: int, overrides: Sequence[str]) -> Run:
    """One round more, because the last one tests the model."""
    workload = ALL[name]
    data = workload.data()
    ended = [time.perf_counter()]
    with tempfile.TemporaryDirectory() as folder:
        result = fedkeel.run(
            workload.experiment(rounds + 1, overrides),
            out=Path(folder) / "run",
            data=data,
            progress=lambda _: ended.append(time.perf_counter()),
        )
    taken = [after - before for before, after in pairwise(ended[:-1])]
    told = compact(result.summary["executor"], result.summary["instruction_set"])
    return {"version": "", "how": told, "seconds": taken}


HERE_RUN = {
    "plain-2": partial(run_bare, False, 2),
    "plain-1": partial(run_bare, False, 1),
    "tuned-2": partial(run_bare, True, 2),
    "tuned-1": partial(run_bare, True, 1),
    "fedkeel": run_fedkeel,
}
PEERS = ("flower", "pfl")


def command(contender: str, environments: Path, overrides: Sequence[str]) -> list[str]:
    if contender in HERE_RUN:
        changed = ["--set", *overrides] if overrides else []
        return [sys.executable, str(HERE / "peers.py"), str(environments), *changed, "--run", contender]
    peer = contender.partition("-")[0]
    return [str(environments / peer / "bin" / "python"), str(HERE / "peers" / f"{peer}_app.py")]


def loop_of(contender: str) -> str:
    """That a contender's clients train with, as its name says."""
    return contender.partition("-")[2] or "plain"


def contenders(asked: Sequence[str], loops: str, name: str) -> list[str]:
    """With each peer as often as there are loops; without those that are left out, unless nobody else was named."""
    found = []
    for each in asked or [*HERE_RUN, *PEERS]:
        if each not in PEERS:
            found.append(each)
        elif [*asked] == [each] or each not in LEFT_OUT.get(name, ()):
            found += [f"{each}-{loop}" for loop in (("plain", "tuned") if loops == "both" else (loops,))]
    return found


def attempt(start: Sequence[str], loop: str, name: str, rounds: int, limit: float) -> Run:
    """What the command reports, or {"failed": why}."""
    if not Path(start[0]).exists():
        return {"failed": f"not installed: no {start[0]} (see install_peers.sh)", "final": True}
    # fedkeel is installed in the peers' environments; here it is the one that this process has.
    path = os.pathsep.join([str(HERE), str(Path(fedkeel.__file__).parents[1])])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = os.environ | quiet | {"PYTHONPATH": path, LOOP: loop}
    process = subprocess.Popen(
        [*start, name, "--rounds", str(rounds + WARM_UP)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    began = time.perf_counter()
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"failed": f"not done after {limit:.0f} s", "final": True}
    if process.returncode:
        said = [line for line in (err or out).splitlines() if line.strip()]
        return {"failed": f"exit code {process.returncode}: {said[-1].strip() if said else 'it said nothing'}"}
    try:
        report: Run = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"failed": "it ended well, but without a report"}
    report["seconds"] = report["seconds"][WARM_UP:]
    return {**report, "process_seconds": time.perf_counter() - began}


def measure(name: str, options: argparse.Namespace) -> Run:
    """A contender that failed to the end, or that takes longer than `--patience`, is not run again."""
    runs: dict[str, list[Run]] = {each: [] for each in contenders(options.contenders, options.loop, name)}
    failed: dict[str, str] = {}
    failures: dict[str, list[str]] = {}
    rounds = options.rounds or ROUNDS[name]
    for _ in range(options.repeats):
        for contender, done in runs.items():
            if contender in failed or (done and done[-1]["process_seconds"] > options.patience):
                continue
            start = command(contender, options.environments, options.overrides)
            for _ in range(ATTEMPTS):
                print(f"{name} {contender} ...", file=sys.stderr, flush=True)
                with fresh_choices():
                    result = attempt(start, loop_of(contender), name, rounds, options.limit)
                if "failed" not in result:
                    done.append(result)
                    break
                failures.setdefault(contender, []).append(result["failed"])
                if result.get("final"):
                    break
            if "failed" in result:
                failed[contender] = result["failed"]
    medians = {
        contender: statistics.median(statistics.median(each["seconds"]) for each in done)
        for contender, done in runs.items()
        if done
    }
    row = {"workload": name, "about": ALL[name].about, "median": medians, "failed": failed, "failures": failures}
    return row | {"runs": runs}


def print_table(rows: Sequence[Run]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 190)
    table = Table(title="Seconds a round, and in brackets how many times fedkeel is as fast")
    table.add_column("workload")
    names = list(dict.fromkeys(contender for row in rows for contender in row["runs"]))
    for contender in names:
        table.add_column(contender, justify="right")
    for row in rows:
        table.add_row(f"{row['workload']} {row['about']}", *(_cell(row, contender) for contender in names))
    console.print(table)
    for row in rows:
        for contender, done in row["runs"].items():
            if done:
                told = (f"{row['workload']} {contender}", done[0]["version"], done[0]["how"], f"{len(done)} run(s)")
                console.print(": ".join(each for each in told if each), highlight=False)
        for contender, why in row["failures"].items():
            told = "FAILED" if contender in row["failed"] else f"failed {len(why)} time(s), then ran"
            console.print(f"{row['workload']} {contender}: {told}: {why[-1]}", style="red", highlight=False)


def _cell(row: Run, contender: str) -> str:
    taken, ours = row["median"].get(contender), row["median"].get("fedkeel")
    if taken is None:
        return "failed" if contender in row["failed"] else ""
    return f"{taken:.3f}" if contender == "fedkeel" or not ours else f"{taken:.3f} ({taken / ours:.2f}x)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*HERE_RUN, *PEERS]
    parser.add_argument("environments", type=Path, metavar="DIR", help="where install_peers.sh put the peers")
    add_choice(parser, ["W1", "W2", "W3", "W5", "P1"])
    parser.add_argument("--contenders", nargs="+", choices=known, default=[], help="by default all")
    parser.add_argument("--rounds", type=int, help="counted rounds of a process")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each contender")
    parser.add_argument("--patience", type=float, default=120, help="seconds after which a process is not repeated")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a process is ended")
    parser.add_argument("--loop", choices=["plain", "tuned", "both"], default="both", help="of the peers' clients")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, each round included")
    parser.add_argument("--run", nargs=2, metavar=("CONTENDER", "WORKLOAD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        contender, name = options.run
        print(json.dumps(HERE_RUN[contender](name, options.rounds, options.overrides)))
        return
    rows = []
    for name in options.only:
        rows.append(measure(name, options))
        print_table(rows[-1:])
        if options.json:  # what is known so far
            report = {"date": now(), "machine": machine(), "loop": options.loop, "workloads": rows}
            options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if len(rows) > 1:
        print_table(rows)


if __name__ == "__main__":
    main()
