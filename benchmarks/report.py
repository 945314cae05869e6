"""The tables of docs/benchmarks.md, from what the benchmarks wrote.

python benchmarks/report.py benchmarks/results > tables.md
python benchmarks/speed.py --from benchmarks/results/speed.json --peers benchmarks/results/peers.json --plot FILE

Reads speed.json, peers.json, methods.json, choices.json and scale.json there; what is not there is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import methods
import scale
from speed import compact, percent, tell

Row = dict[str, Any]
NAMES = {
    "plain-2": "plain, 2 threads",
    "plain-1": "plain, 1 thread",
    "tuned-2": "tuned, 2 threads",
    "tuned-1": "tuned, 1 thread",
    "fedkeel": "fedkeel",
    "flower-plain": "Flower, plain loop",
    "flower-tuned": "Flower, tuned loop",
    "pfl-plain": "pfl-research, plain loop",
    "pfl-tuned": "pfl-research, tuned loop",
}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def speed(report: Row) -> str:
    who = [each for each in list(NAMES)[:5] if any(each in row["median"] for row in report["workloads"])]
    rows = [
        [
            f"{row['workload']} {row['about']}",
            *(f"{row['median'][each]:.3f}" if each in row["median"] else "" for each in who),
            f"**{row['ratio']:.3f}**",
            f"{row['ratio_to_tuned']:.3f}",
            f"{row['clients_per_second']:,.0f}",
            percent(row),
            compact(row["executor"], row["instruction_set"]),
        ]
        for row in report["workloads"]
    ]
    heads = ["workload", *(NAMES[each] for each in who), "of plain", "of tuned", "clients/s", "of peak"]
    text = table([*heads, "executor chosen by auto"], rows)
    if most := report["peak"]:
        text += (
            f"\nPeak of one core in the same run ({most['instruction_set']}): {most['one_core'] / 1e9:.0f} GFLOP/s; of "
            f"both at once: {most['all_cores'] / 1e9:.0f}.\n"
        )
    for row in report["workloads"]:
        unsteady = [who for who, (low, high) in row["quartiles"].items() if high > 1.3 * low]
        text += f"\n{row['workload']}: {', '.join(unsteady)} varied by more than 30 %.\n" if unsteady else ""
        text += f"\n{row['workload']}: {row['why_not_native']}\n" if row["why_not_native"] else ""
    return text + "".join(f"\n- {tell(yard)}" for yard in report["yardsticks"]) + "\n"


def peers(report: Row) -> str:
    who = [each for each in NAMES if any(each in row["median"] for row in report["workloads"])]
    rows = []
    for row in report["workloads"]:
        ours = row["median"].get("fedkeel")
        cells = []
        for each in who:
            taken = row["median"].get(each)
            if taken is None:
                cells.append(row["failed"].get(each, ""))
            elif each == "fedkeel" or not ours:
                cells.append(f"{taken:.3f}")
            else:
                cells.append(f"{taken:.3f} ({taken / ours:.1f}x)")
        rows.append([f"{row['workload']} {row['about']}", *cells])
    text = table(["workload", *(NAMES[each] for each in who)], rows)
    for row in report["workloads"]:
        told = sorted({each["how"] for each in row["runs"].get("fedkeel", [])})
        text += f"\n{row['workload']} fedkeel: {'; or '.join(told)}." if told else ""
        for contender, why in row.get("failures", {}).items():
            text += f"\n{row['workload']} {NAMES[contender]}: failed {len(why)} time(s): {why[-1]}."
    return text + "\n"


def choices(report: Row) -> str:
    rows = []
    for row in report["workloads"]:
        chosen = "; ".join(
            f"{each['times']} x {compact(each['executor'])} ({1e3 * each['seconds_per_round']:.3g} ms)"
            for each in row["chosen"]
        )
        times = f"{row['median_seconds']:.2f}", f"{row['max_seconds']:.2f}", f"{row['apart']:.2f}"
        rows.append([f"{row['workload']} {row['about']}", *times, chosen])
    heads = ["workload", "median seconds to choose", "maximum", "slowest / fastest", f"choices, of {report['times']}"]
    return table(heads, rows)


TABLES: dict[str, Callable[[Any], str]] = {
    "speed": speed,
    "peers": peers,
    "methods": methods.table,
    "choices": choices,
    "scale": scale.tables,
}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, tables in TABLES.items():
        path = folder / f"{name}.json"
        if not path.exists():
            print(f"{name}: no {path}\n")
            continue
        report = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(report, dict) and "machine" not in report:
            print(f"{name}: {path} is of an earlier version of the benchmark\n")
            continue
        if isinstance(report, dict):
            machine = report["machine"]
            print(f"{name}: {report['date']}, {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}\n")
        print(tables(report).rstrip() + "\n")


if __name__ == "__main__":
    main()
