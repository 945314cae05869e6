"""Seconds a round: fedkeel against two bare PyTorch loops (`bare.py`), interleaved in one run.

    python benchmarks/speed.py [--only W1,W2] [--rounds N] [--set executor=serial] [--json FILE]
    python benchmarks/speed.py --plot speed.png [--peers peers.json]

After each of fedkeel's rounds the plain loop and the tuned one train the same clients, each with two threads, then with
one, so all meet the same state of the machine. A round of fedkeel is the time between two such interruptions: dispatch,
training, aggregation, records. Not counted are set-up, the first two rounds and the last, which tests the model.
A ratio is to the faster of one and two threads: with other work on the second core, PyTorch's two threads wait for each
other and take many times as long. The target stands beside the ratio to the plain loop, which fits the description of
the loop it was set against; the ratio to the tuned one is the stricter.
The yardstick is a whole `fedkeel run` as a process of its own: start, data, rounds with a test after each, figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare import LOOPS, BareLoop, seconds
from rich.console import Console
from rich.table import Table
from workloads import WORKLOADS, YARDSTICK, Workload, add_choice

from fedkeel import RoundEnd, run

WARM_UP, LAST = 2, 1
PEERS = {"pfl": "#E69F00", "flower": "#CC79A7"}
COLOURS = {"fedkeel": "#0072B2", "tuned loop": "#999999", **PEERS}  # Okabe and Ito's, safe for the colour-blind
Row = dict[str, Any]


class Rounds:
    """The run's observer: takes the time and lets the bare loop train in between."""

    def __init__(self, loops: dict[str, BareLoop]) -> None:
        self.loops = loops
        self.seconds: dict[str, list[float]] = {"fedkeel": [], **{f"{who}-{n}": [] for who in loops for n in (2, 1)}}
        self._resumed = time.perf_counter()

    def __call__(self, end: RoundEnd) -> None:
        self.seconds["fedkeel"].append(time.perf_counter() - self._resumed)
        clients = [arrival.client for arrival in end.arrivals]
        for who, loop in self.loops.items():
            for count in (2, 1):
                self.seconds[f"{who}-{count}"].append(seconds(loop, clients, count))
        self._resumed = time.perf_counter()

    def counted(self) -> dict[str, list[float]]:
        return {who: taken[WARM_UP:-LAST] for who, taken in self.seconds.items()}


def measure(workload: Workload, rounds: int | None, overrides: Sequence[str]) -> Row:
    counted = rounds or workload.rounds
    experiment = workload.experiment(counted + WARM_UP + LAST, overrides)
    data = workload.data()
    observer = Rounds({LOOPS[tricks]: BareLoop(experiment, data, tricks) for tricks in (False, True)})
    with tempfile.TemporaryDirectory() as folder:
        result = run(experiment, out=Path(folder) / "run", data=data, progress=observer)
    taken = observer.counted()
    median = {who: float(np.median(each)) for who, each in taken.items()}
    return {
        "workload": workload.name,
        "about": workload.about,
        "rounds": counted,
        "median": median,
        "quartiles": {who: np.percentile(each, [25, 75]).tolist() for who, each in taken.items()},
        "ratio": median["fedkeel"] / min(median["plain-2"], median["plain-1"]),
        "ratio_to_tuned": median["fedkeel"] / min(median["tuned-2"], median["tuned-1"]),
        "target": workload.target,
        "executor": result.summary.get("executor"),
        "seconds_per_round_median": result.summary.get("seconds_per_round_median"),
        "seconds": taken,
    }


def measure_yardstick(overrides: Sequence[str]) -> Row:
    settings = {**YARDSTICK, **dict(each.split("=", 1) for each in overrides)}
    code = "from fedkeel.cli import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        given = [f"{key}={value}" for key, value in settings.items()]
        start = time.perf_counter()
        command = [sys.executable, "-c", code, "run", "--out", str(out), "--set", *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"the yardstick failed: {(done.stderr or done.stdout).strip()}")
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return {
        "wall_seconds": wall,
        "run_seconds": summary["wall_seconds"],
        "accuracy": summary["final_accuracy"],
        "executor": summary.get("executor"),
    }


def machine() -> Row:
    """What the figures were measured on."""
    cpu = platform.processor()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def compact(value: Any) -> str:
    """The executor in a few words: {"kind": "processes", "stack": 5, "workers": None} is "processes, stack 5"."""
    if not isinstance(value, dict):
        return str(value)
    words = []
    for name, each in value.items():
        if isinstance(each, bool):
            words += [name] * each
        elif isinstance(each, str | int | float):
            words.append(str(each) if name == "kind" else f"{name} {each}")
    return ", ".join(words)


def print_table(rows: Sequence[Row], yardstick: Row | None) -> None:
    console = Console(width=None if sys.stdout.isatty() else 190)
    table = Table(title="Seconds a round, median (quartiles), and fedkeel's as a share of the loops'")
    table.add_column("workload")
    for head in ("plain, 2 threads", "1 thread", "tuned, 2 threads", "1 thread", "fedkeel"):
        table.add_column(head, justify="right")
    for head in ("to plain", "target", "to tuned"):
        table.add_column(head, justify="right")
    table.add_column("executor")
    for row in rows:
        cells = [_spread(row, who) for who in ("plain-2", "plain-1", "tuned-2", "tuned-1", "fedkeel")]
        met = "green" if row["ratio"] <= row["target"] else "red"
        ratios = [f"[{met}]{row['ratio']:.3f}[/]", f"{row['target']:.2f}", f"{row['ratio_to_tuned']:.3f}"]
        table.add_row(f"{row['workload']} {row['about']}", *cells, *ratios, compact(row["executor"]))
    if rows:
        console.print(table)
    for row in rows:
        if unsteady := [who for who, (low, high) in row["quartiles"].items() if high > 1.3 * low]:
            console.print(f"{row['workload']}: the machine was busy, {', '.join(unsteady)} varied by more than 30 %")
    if yardstick:
        console.print(
            f"Yardstick (MNIST, linear, 1,000 clients, 100 rounds): {yardstick['wall_seconds']:.1f} s in all, "
            f"of which {yardstick['run_seconds']:.1f} s in rounds; accuracy {yardstick['accuracy']:.2%}; "
            f"executor {compact(yardstick['executor'])}"
        )


def _spread(row: Row, who: str) -> str:
    low, high = row["quartiles"][who]
    return f"{row['median'][who]:.3f} ({low:.3f}-{high:.3f})"


def ratios(rows: Sequence[Row], peers: Row | None) -> dict[str, dict[str, float]]:
    """workload -> contender -> seconds a round over the plain loop's in the same measurement."""
    found = {}
    for row in rows:
        tuned = min(row["median"]["tuned-2"], row["median"]["tuned-1"])
        plain = min(row["median"]["plain-2"], row["median"]["plain-1"])
        found[f"{row['workload']} {row['about']}"] = {"fedkeel": row["ratio"], "tuned loop": tuned / plain}
    for row in (peers or {}).get("workloads", []):
        bare = min(row["median"].get(who, np.inf) for who in ("plain-2", "plain-1"))
        others = {who: taken / bare for who, taken in row["median"].items() if who in PEERS and np.isfinite(bare)}
        for label, bars in found.items():
            if label.startswith(row["workload"]):
                bars.update(others)
    return found


def plot(rows: Sequence[Row], peers: Row | None, path: Path) -> None:
    matplotlib = import_module("matplotlib")
    matplotlib.use("Agg")
    plt = import_module("matplotlib.pyplot")
    shown = ratios(rows, peers)
    contenders = [who for who in COLOURS if any(who in bars for bars in shown.values())]
    figure, axes = plt.subplots(figsize=(9, 1.2 + (0.25 + 0.27 * len(contenders)) * len(shown)), layout="constrained")
    place, ticks = 0.0, []
    for bars in shown.values():
        top = place
        for who in (who for who in contenders if who in bars):
            axes.barh(place, bars[who] - 1, left=1, color=COLOURS[who], label=who)
            side = "right" if bars[who] < 1 else "left"
            text = f" {bars[who]:.2f} " if bars[who] < 10 else f" {bars[who]:.0f} "
            axes.annotate(text, (bars[who], place), va="center", ha=side, fontsize=9)
            place += 1
        ticks.append((top + place - 1) / 2)
        place += 0.7
    axes.set_yticks(ticks, shown)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.axvline(1, color="black", linewidth=1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.supxlabel("seconds a round / a plain PyTorch loop's, on 1 or 2 threads (left of 1: faster)", size=10)
    axes.spines[["top", "right"]].set_visible(False)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser, [*WORKLOADS, "yardstick"], others=["yardstick"])
    parser.add_argument("--rounds", type=int, help="counted rounds of each workload")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, each round included")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios as bars")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="what peers.py --json wrote, for the plot")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="show an earlier --json instead")
    options = parser.parse_args()
    if options.source:
        report = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        names = [name for name in options.only if name in WORKLOADS]
        rows = []
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(measure(WORKLOADS[name], options.rounds, options.overrides))
        yardstick = measure_yardstick(options.overrides) if "yardstick" in options.only else None
        report = {"date": now(), "machine": machine(), "overrides": options.overrides, "workloads": rows}
        report["yardstick"] = yardstick
    print_table(report["workloads"], report["yardstick"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(
            report["workloads"],
            json.loads(options.peers.read_text(encoding="utf-8")) if options.peers else None,
            options.plot,
        )


if __name__ == "__main__":
    main()
