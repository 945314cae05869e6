"""What a run of FedASMU says of staleness, merges and control parameters.

python benchmarks/merges.py DIR/runs/FedASMU-seed0 ...     # run folders
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedkeel.record.runs import RunRecord

CONTROL = {"lambda": "lambda_", "sigma": "sigma", "iota": "iota", "gamma": "gamma", "upsilon": "upsilon"}
"""As arrivals' notes call them, and as the experiment does."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    for path in parser.parse_args().runs:
        run = RunRecord.read(path)
        rows = list(run.arrivals())
        merges = [row["notes"] for row in rows if row.get("merged") is not None]
        worse = np.array([note["loss_before"] < note["loss_after"] for note in merges])
        print(f"{path}: {len(rows)} arrivals, mean staleness {np.mean([row['staleness'] for row in rows]):.1f}")
        print(
            f"  {len(merges)} merges; local loss higher after it: {worse[:100].mean():.0%} of the first 100, "
            f"{worse[len(worse) // 2 :].mean():.0%} of the second half, {worse.mean():.0%} of all"
        )
        for noted, setting in CONTROL.items():
            first = run.experiment["algorithm"][setting]
            furthest = max(abs(row["notes"][noted] / first - 1) for row in rows if noted in row.get("notes", {}))
            print(f"  {noted}: from {first:g}, at most {furthest:.1e} of it away")


if __name__ == "__main__":
    main()
