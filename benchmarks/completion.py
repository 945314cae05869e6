"""How near FedLGA's completed updates are to what stragglers would have sent: Eq. 3's relative error, by reading.

python benchmarks/completion.py                                     # four regimes, all readings, seeds 0 1 2
python benchmarks/completion.py --regimes lr-0.02 --readings fitted --seeds 10 11 --rounds 30

One row a reading; first what leaving updates alone and the best factor for each of them come to, in the runs of the
first reading. Means over rounds and seeds ± the standard deviation over seeds; then those of the first and of the last
five rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

import fedkeel
from fedkeel.methods.fedlga import Completion

REGIMES = {
    "lr-0.00006": ["local.lr=0.00006"],
    "lr-0.0006": ["local.lr=0.0006"],
    "lr-0.02": ["local.lr=0.02"],
    "5-steps-lr-0.01": ["local.steps=5", "local.lr=0.01"],
}
READINGS = [reading for reading in get_args(Completion) if reading != "literal"]  # it runs away
SOME = 5


def errors(regime: str, reading: str, seed: int, rounds: int) -> dict[str, NDArray[np.float64]]:
    """[rounds] of each error."""
    told: dict[str, list[float]] = {}

    def note(end: fedkeel.RoundEnd) -> None:
        for name, value in end.report.items():
            if name.startswith("error_"):
                told.setdefault(name, []).append(value)

    chosen = [f"algorithm.reading={reading}", "algorithm.diagnose=true", f"seed={seed}", f"rounds={rounds}"]
    quarter = ["dataset.train_limit=15000", "dataset.test_limit=100", f"evaluate_every={rounds}"]
    experiment = fedkeel.Experiment.load("experiments/fmnist-stragglers.yaml", [*REGIMES[regime], *chosen, *quarter])
    fedkeel.run(experiment, progress=note)
    return {name: np.array(values) for name, values in told.items()}


def cell(runs: Sequence[NDArray[np.float64]]) -> str:
    means = [run.mean() for run in runs]
    spread = np.std(means, ddof=1) if len(means) > 1 else 0.0
    first, last = (np.mean([run[part].mean() for run in runs]) for part in (slice(SOME), slice(-SOME, None)))
    return f"{np.mean(means):.3f} ± {spread:.3f} ({first:.3f}, {last:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=[*REGIMES])
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=READINGS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    for regime in given.regimes:
        print(f"\n{regime}: mean ± over seeds (first {SOME} rounds, last {SOME})", flush=True)
        for place, reading in enumerate(given.readings):
            runs = [errors(regime, reading, seed, given.rounds) for seed in given.seeds]
            rows = {"nothing": "error_untouched", "best factor": "error_best_factor"} if not place else {}
            for label, name in {**rows, reading: "error_completed"}.items():
                print(f"  {label:12} {cell([run[name] for run in runs])}", flush=True)


if __name__ == "__main__":
    main()
