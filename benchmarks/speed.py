"""Seconds a round: fedkeel against two bare PyTorch loops (`bare.py`), interleaved in one run.

    python benchmarks/speed.py [--only W1,W2] [--rounds N] [--set executor=serial] [--json FILE]
    python benchmarks/speed.py --from benchmarks/results/speed.json --plot speed.png [--peers peers.json]

After each of fedkeel's rounds the plain loop and the tuned one train the same clients, each with two threads, then with
one, so all meet the same state of the machine. A round of fedkeel is the time between two such interruptions: dispatch,
training, aggregation, records. Not counted are set-up, the first two rounds and the last, which tests the model.
A ratio is to the faster of one and two threads: with other work on the second core, PyTorch's two threads wait for each
other and take many times as long. The target stands beside the ratio to the plain loop.

fedkeel's share of the peak is a round's floating-point operations (`Workload.flops`) in its seconds, against what the
multiply-add units of the cores that it uses can do: that of one core, the most that was seen before and after the
workloads, times their number. Whatever a round does beside the layers' products counts as time, not as operations.

The yardsticks are whole runs of `fedkeel run` as processes of their own: start, data, rounds, tests, figures. The first
run chooses an executor, later ones remember it. `yardstick` is logistic regression on MNIST, tested after each of 100
rounds; `pfl-cifar10` is pfl-research's own benchmark (see `workloads.py`), 5 rounds and a test, and the same without
dropout. Choices that were remembered before are not used.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare import LOOPS, BareLoop, seconds
from rich.console import Console
from rich.table import Table
from workloads import ALL, PUBLIC, WORKLOADS, YARDSTICKS, Workload, add_choice, fresh_choices

from fedkeel import RoundEnd, run
from fedkeel.data.cache import cache_folder
from fedkeel.local.machine import cores
from fedkeel.local.native.library import load

HERE = Path(__file__).resolve().parent
WARM_UP, LAST = 2, 1
WHO = ("plain-2", "plain-1", "tuned-2", "tuned-1", "fedkeel")
PEERS = {
    "pfl-plain": ("pfl-research, plain loop", "#E69F00", ""),
    "pfl-tuned": ("pfl-research, tuned loop", "#E69F00", "////"),
    "flower-plain": ("Flower, plain loop", "#CC79A7", ""),
    "flower-tuned": ("Flower, tuned loop", "#CC79A7", "////"),
}
# Okabe and Ito's colours, safe for the colour-blind; what trains with the tuned loop is hatched.
LOOKS = {"fedkeel": ("fedkeel", "#0072B2", ""), "tuned loop": ("tuned loop alone", "#999999", "////"), **PEERS}
Row = dict[str, Any]


class Rounds:
    """The run's observer: takes the time and lets the bare loop train in between."""

    def __init__(self, loops: dict[str, BareLoop], threads: Sequence[int]) -> None:
        self.loops, self.threads = loops, threads
        self.seconds: dict[str, list[float]] = {"fedkeel": [], **{f"{who}-{n}": [] for who in loops for n in threads}}
        self._resumed = time.perf_counter()

    def __call__(self, end: RoundEnd) -> None:
        self.seconds["fedkeel"].append(time.perf_counter() - self._resumed)
        clients = [arrival.client for arrival in end.arrivals]
        for who, loop in self.loops.items():
            for count in self.threads:
                self.seconds[f"{who}-{count}"].append(seconds(loop, clients, count))
        self._resumed = time.perf_counter()

    def counted(self) -> dict[str, list[float]]:
        return {who: taken[WARM_UP:-LAST] for who, taken in self.seconds.items()}


def peak() -> Row | None:
    """Floating-point operations a second of one core's multiply-add units, alone and while all others are as busy."""
    library = load()
    if library is None:
        return None
    function = library.handle.fk_peak
    function.argtypes, function.restype = [ctypes.c_int], ctypes.c_double
    one = max(function(4) for _ in range(3))
    with ThreadPoolExecutor(cores()) as pool:
        together = [sum(pool.map(function, [4] * cores())) for _ in range(3)]
    return {"instruction_set": library.isa, "one_core": one, "all_cores": max(together)}


def highest(found: Sequence[Row | None]) -> Row | None:
    """What the machine can do, not what other work left of it."""
    known = [each for each in found if each]
    if not known:
        return None
    together = max(each["all_cores"] for each in known)
    one = max(together / cores(), *(each["one_core"] for each in known))
    return {**known[0], "one_core": one, "all_cores": together}


def used(executor: Row) -> int:
    """Cores that an executor keeps busy."""
    return (executor["workers"] or cores()) if executor["kind"] in ("threads", "processes") else 1


def measure(workload: Workload, rounds: int | None, overrides: Sequence[str], threads: Sequence[int] = (2, 1)) -> Row:
    counted = rounds or workload.rounds
    experiment = workload.experiment(counted + WARM_UP + LAST, overrides)
    data = workload.data()
    observer = Rounds({LOOPS[tricks]: BareLoop(experiment, data, tricks) for tricks in (False, True)}, threads)
    with tempfile.TemporaryDirectory() as folder:
        result = run(experiment, out=Path(folder) / "run", data=data, progress=observer)
    taken = observer.counted()
    median = {who: float(np.median(each)) for who, each in taken.items()}
    bare = {who: min(median[f"{who}-{count}"] for count in threads) for who in observer.loops}
    summary = result.summary
    return {
        "workload": workload.name,
        "about": workload.about,
        "rounds": counted,
        "random_data": workload.random,
        "median": median,
        "quartiles": {who: np.percentile(each, [25, 75]).tolist() for who, each in taken.items()},
        "ratio": median["fedkeel"] / bare["plain"],
        "ratio_to_tuned": median["fedkeel"] / bare["tuned"],
        "target": workload.target,
        "clients_per_second": workload.per_round / median["fedkeel"],
        "flops": workload.flops,
        "executor": summary["executor"],
        "instruction_set": summary["instruction_set"],
        "why_not_native": summary["why_not_native"],
        "seconds_per_round_median": summary["seconds_per_round_median"],
        "seconds": taken,
    }


def shares(rows: Sequence[Row], most: Row | None) -> None:
    """Add to each row what part it is of the peak of the cores that it used."""
    for row in rows:
        row["cores_used"] = used(row["executor"])
        attained = row["flops"] / row["median"]["fedkeel"]
        row["gflops"] = attained / 1e9
        row["share_of_peak"] = attained / (row["cores_used"] * most["one_core"]) if most else None


def measure_yardstick(name: str, overrides: Sequence[str], repeats: int) -> Row:
    """Whole commands, one after the other; the first has no choice of an executor to remember."""
    settings = {**YARDSTICKS[name], **dict(each.split("=", 1) for each in overrides)}
    given = [f"{key}={value}" for key, value in settings.items()]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    walls: list[float] = []
    summary: Row = {}
    shutil.rmtree(cache_folder() / "executors", ignore_errors=True)  # of `fresh_choices`
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            start = time.perf_counter()
            code = "from fedkeel.cli import main; main()"
            command = [sys.executable, "-c", code, "run", "--out", str(out), "--set", *given]
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            walls.append(time.perf_counter() - start)
            if done.returncode:
                return {"name": name, "failed": (done.stderr or done.stdout).strip().splitlines()[-1]}
            summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return {
        "name": name,
        "first_seconds": walls[0],
        "wall_seconds": float(np.median(walls[1:] or walls)),
        "walls": walls,
        "rounds": summary["rounds"],
        "run_seconds": summary["wall_seconds"],
        "seconds_per_round": summary["seconds_per_round_median"],
        "clients_per_second": summary["per_round"] / summary["seconds_per_round_median"],
        "accuracy": summary["final_accuracy"],
        "executor": summary["executor"],
        "instruction_set": summary["instruction_set"],
        "why_not_native": summary["why_not_native"],
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


def compact(value: Any, isa: str | None = None) -> str:
    """The executor in a few words: {"kind": "processes", "stack": 5, "workers": None} is "processes, stack 5"."""
    if not isinstance(value, dict):
        return str(value)
    words = []
    for name, each in value.items():
        if isinstance(each, bool):
            words += [f"{name} ({isa})" if name == "native" and isa else name] * each
        elif isinstance(each, str | int | float):
            words.append(str(each) if name == "kind" else f"{name} {each}")
    return ", ".join(words)


def print_table(report: Row) -> None:
    rows = report["workloads"]
    console = Console(width=None if sys.stdout.isatty() else 210)
    table = Table(title="Seconds a round, median (quartiles), and fedkeel's as a share of the loops'")
    table.add_column("workload")
    who = [each for each in WHO if any(each in row["median"] for row in rows)]
    heads = [each.replace("-", ", ") + " thread(s)" if each != "fedkeel" else each for each in who]
    for head in (*heads, "to plain", "target", "to tuned", "clients/s", "of peak"):
        table.add_column(head, justify="right")
    table.add_column("executor")
    for row in rows:
        cells = [_spread(row, each) if each in row["median"] else "" for each in who]
        met = "" if row["target"] is None else "green" if row["ratio"] <= row["target"] else "red"
        ratio = f"[{met}]{row['ratio']:.3f}[/]" if met else f"{row['ratio']:.3f}"
        target = "" if row["target"] is None else f"{row['target']:.2f}"
        more = [ratio, target, f"{row['ratio_to_tuned']:.3f}", f"{row['clients_per_second']:,.0f}", percent(row)]
        label = f"{row['workload']} {row['about']}" + ", random data" * (
            row["workload"] in PUBLIC and row["random_data"]
        )
        table.add_row(label, *cells, *more, compact(row["executor"], row["instruction_set"]))
    if rows:
        console.print(table)
    if most := report.get("peak"):
        console.print(
            f"Peak of one core ({most['instruction_set']}): {most['one_core'] / 1e9:.0f} GFLOP/s; "
            f"of all at once: {most['all_cores'] / 1e9:.0f}"
        )
    for row in rows:
        if row["why_not_native"]:
            console.print(f"{row['workload']}: {row['why_not_native']}")
        if unsteady := [who for who, (low, high) in row["quartiles"].items() if high > 1.3 * low]:
            console.print(f"{row['workload']}: the machine was busy, {', '.join(unsteady)} varied by more than 30 %")
    for yard in report["yardsticks"]:
        console.print(tell(yard), highlight=False)


def tell(yard: Row) -> str:
    """A yardstick in a sentence."""
    if "failed" in yard:
        return f"{yard['name']}: FAILED, {yard['failed']}"
    return (
        f"{yard['name']}: {yard['wall_seconds']:.1f} s in all ({yard['first_seconds']:.1f} s the first time), "
        f"{yard['run_seconds']:.1f} s of it in {yard['rounds']} rounds and tests; "
        f"{_time(yard['seconds_per_round'])} a round, {yard['clients_per_second']:,.0f} clients a second; "
        f"accuracy {yard['accuracy']:.2%}; {compact(yard['executor'], yard['instruction_set'])}"
        + (f". {yard['why_not_native']}" if yard["why_not_native"] else "")
    )


def percent(row: Row) -> str:
    """Of the peak."""
    return "" if row.get("share_of_peak") is None else f"{row['share_of_peak']:.0%}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _spread(row: Row, who: str) -> str:
    low, high = row["quartiles"][who]
    return f"{row['median'][who]:.3f} ({low:.3f}-{high:.3f})"


def ratios(rows: Sequence[Row], peers: Row | None) -> dict[str, dict[str, float]]:
    """workload -> contender -> seconds a round over the plain loop's in the same measurement."""
    found = {}
    for row in rows:
        tuned, plain = (
            min(row["median"].get(f"{who}-{count}", np.inf) for count in (1, 2)) for who in ("tuned", "plain")
        )
        found[f"{row['workload']} {row['about']}"] = {"fedkeel": row["ratio"], "tuned loop": tuned / plain}
    for row in (peers or {}).get("workloads", []):
        bare = min(row["median"].get(who, np.inf) for who in ("plain-2", "plain-1"))
        others = {who: taken / bare for who, taken in row["median"].items() if who in PEERS and np.isfinite(bare)}
        for label, bars in found.items():
            if label.split()[0] == row["workload"]:
                bars.update(others)
    return found


def plot(rows: Sequence[Row], peers: Row | None, path: Path) -> None:
    matplotlib = import_module("matplotlib")
    matplotlib.use("Agg")
    plt = import_module("matplotlib.pyplot")
    shown = ratios(rows, peers)
    contenders = [who for who in LOOKS if any(who in bars for bars in shown.values())]
    count = sum(len(bars) for bars in shown.values())
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.21 * (count + 0.9 * len(shown))), layout="constrained")
    place, ticks = 0.0, []
    for bars in shown.values():
        top = place
        for who in (who for who in contenders if who in bars):
            label, colour, hatch = LOOKS[who]
            axes.barh(
                place, bars[who] - 1, left=1, height=0.86, color=colour, hatch=hatch, edgecolor="white", label=label,
                linewidth=0,
            )  # fmt: skip
            side = "right" if bars[who] < 1 else "left"
            digits = 3 if bars[who] < 0.1 else 2 if bars[who] < 10 else 0
            text, weight = f" {bars[who]:.{digits}f} ", "bold" if who == "fedkeel" else "normal"
            axes.annotate(text, (bars[who], place), va="center", ha=side, fontsize=8.5, fontweight=weight)
            place += 1
        ticks.append((top + place - 1) / 2)
        place += 0.9
    axes.set_yticks(ticks, [label.replace(", ", ",\n") for label in shown])
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.axvline(1, color="black", linewidth=1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    told = "seconds per round, divided by those of a plain PyTorch loop on 1 or 2 threads (left of 1: faster)"
    figure.supxlabel(told, size=10)
    axes.spines[["top", "right"]].set_visible(False)
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    handles = {LOOKS[who][0]: found[LOOKS[who][0]] for who in contenders}
    axes.legend(handles.values(), handles, loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


def measure_all(options: argparse.Namespace) -> Row:
    rows: list[Row] = []
    threads = [int(count) for count in options.threads.split(",")]
    peaks = [peak()]
    with fresh_choices():
        for name in (name for name in options.only if name in ALL):
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(measure(ALL[name], options.rounds, options.overrides, threads))
            peaks.append(peak())
        yards = []
        for name in (name for name in options.only if name in YARDSTICKS):
            print(f"{name} ...", file=sys.stderr, flush=True)
            repeats = options.repeats if name == "yardstick" else min(2, options.repeats)
            yards.append(measure_yardstick(name, options.overrides, repeats))
    shares(rows, most := highest(peaks))
    return {
        "date": now(),
        "machine": machine(),
        "overrides": options.overrides,
        "peak": most,
        "workloads": rows,
        "yardsticks": yards,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser, [*WORKLOADS, *YARDSTICKS], others=list(YARDSTICKS))
    parser.add_argument("--rounds", type=int, help="counted rounds of each workload")
    parser.add_argument("--threads", default="2,1", help="of the bare loops; 1 alone on a busy machine")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the yardstick; of the others at most 2")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, each round included")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios as bars")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="what peers.py --json wrote, for the plot")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="show an earlier --json instead")
    options = parser.parse_args()
    report = json.loads(options.source.read_text(encoding="utf-8")) if options.source else measure_all(options)
    print_table(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        peers = json.loads(options.peers.read_text(encoding="utf-8")) if options.peers else None
        plot(report["workloads"], peers, options.plot)


if __name__ == "__main__":
    main()
