"""Memory and seconds a round as the fleet grows: `python benchmarks/scale.py [--json FILE]`.

A linear model on small generated data, 1,000 clients a round, of 10,000, 100,000 and 1,000,000 clients. Each fleet
runs in a process of its own, so that the peak of its memory is its own; that of its workers is added.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

FLEETS = (10_000, 100_000, 1_000_000)
SAMPLES, FEATURES, ROUNDS = 4, 20, 30


def measure(clients: int, samples: int, features: int, rounds: int) -> dict[str, float]:
    """One fleet, in this process."""
    import numpy as np

    from fedkeel import Experiment, FederatedData, run

    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * samples, features), dtype=np.float32)
    data = FederatedData.from_arrays(
        x, rng.integers(0, 10, len(x)), clients=clients, test=(x[:1000], [*range(10)] * 100)
    )
    experiment = Experiment(
        model="linear", per_round=1000, rounds=rounds, evaluate_every=rounds, local={"batch_size": 10}
    )
    result = run(experiment, data=data)
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "clients": clients,
        "samples": len(x),
        "seconds_per_round": result.summary["seconds_per_round_median"],
        "peak_gib": peaks[0] / 2**20,
        "peak_of_a_worker_gib": peaks[1] / 2**20,
        "executor": result.summary["executor"],  # type: ignore[dict-item]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one)))
        return
    cases = [(clients, SAMPLES, FEATURES, ROUNDS) for clients in FLEETS] + [(10_000, 6, 784, ROUNDS)]
    rows = []
    print(f"{'clients':>9} {'samples':>9} {'features':>8} {'ms a round':>10} {'peak GiB':>8} {'a worker':>8}  executor")
    for case in cases:
        command = [sys.executable, __file__, "--one", *map(str, case)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append(row | {"features": case[2]})
        executor = row["executor"]
        print(
            f"{row['clients']:>9,} {row['samples']:>9,} {case[2]:>8} {1e3 * row['seconds_per_round']:>10.1f} "
            f"{row['peak_gib']:>8.2f} {row['peak_of_a_worker_gib']:>8.2f}"
            f"  {executor['kind']}, stack {executor['stack']}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
