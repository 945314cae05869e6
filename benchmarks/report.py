"""The tables and the figure of docs/benchmarks.md, from what the benchmarks wrote.

python benchmarks/report.py benchmarks/results > tables.md      # reads speed.json, peers.json and scale.json there
python benchmarks/speed.py --from benchmarks/results/speed.json --peers benchmarks/results/peers.json --plot FILE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speed import compact

Row = dict[str, Any]
NAMES = {"plain-2": "plain, 2 threads", "plain-1": "plain, 1 thread", "fedkeel": "fedkeel"}
NAMES |= {"tuned-2": "tuned, 2 threads", "tuned-1": "tuned, 1 thread", "flower": "Flower", "pfl": "pfl-research"}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def speed(report: Row) -> str:
    who = ["plain-2", "plain-1", "tuned-2", "tuned-1", "fedkeel"]
    rows = [
        [
            f"{row['workload']} {row['about']}",
            *(f"{row['median'][each]:.3f}" for each in who),
            f"**{row['ratio']:.2f}**",
            f"{row['ratio_to_tuned']:.2f}",
            f"{row['target']:.2f}",
            compact(row["executor"]),
        ]
        for row in report["workloads"]
    ]
    yard = report["yardstick"]
    heads = ["workload", *(NAMES[each] for each in who), "to plain", "to tuned", "target", "executor that auto chose"]
    return (
        table(heads, rows)
        + f"\nYardstick: {yard['wall_seconds']:.1f} s in all, {yard['run_seconds']:.1f} s of it in rounds with a test "
        f"after each; accuracy {yard['accuracy']:.2%}.\n"
    )


def peers(report: Row) -> str:
    who = [each for each in NAMES if any(each in row["median"] for row in report["workloads"])]
    rows = []
    for row in report["workloads"]:
        ours = row["median"]["fedkeel"]
        cells = [
            f"{row['median'][each]:.3f}" + (f" ({row['median'][each] / ours:.1f}x)" if each != "fedkeel" else "")
            if each in row["median"]
            else row["failed"].get(each, "")
            for each in who
        ]
        rows.append([f"{row['workload']} {row['about']}", *cells])
    return table(["workload", *(NAMES[each] for each in who)], rows)


def scale(rows: Sequence[Row]) -> str:
    return table(
        ["clients", "samples", "features", "ms a round", "peak, GiB", "of a worker, GiB"],
        [
            [
                f"{row['clients']:,}",
                f"{row['samples']:,}",
                str(row["features"]),
                f"{1e3 * row['seconds_per_round']:.0f}",
                f"{row['peak_gib']:.2f}",
                f"{row['peak_of_a_worker_gib']:.2f}",
            ]
            for row in rows
        ],
    )


def main() -> None:
    folder = Path(sys.argv[1])
    for name, tell in (("speed", speed), ("peers", peers), ("scale", scale)):
        report = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if isinstance(report, dict):
            machine = report["machine"]
            print(f"{name}: {report['date']}, {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}\n")
        print(tell(report))


if __name__ == "__main__":
    main()
