"""Size of a report, and how long a browser takes to open it: `python benchmarks/page.py [COMPARISON]`.

Without a folder, ten methods by five seeds are compared first, in a temporary one (a minute on two cores). The time is
that from the address to the second frame that is drawn, with all charts. The browser is new for every load. Needs what
`make test-extras` installs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PLAYWRIGHT = ROOT / ".venv/browser/node_modules/playwright-core"
METHODS = "fedavg,fedprox,fedadam,fednova,scaffold,fedagg,fedlga,fedasmu,fedasync,fedbuff"
SETTINGS = [
    "model=linear", "rounds=60", "partition=dirichlet", "fleet.speed_ratio=5", "fleet.dropout=0.1",
    "evaluate_clients=true", "target_accuracy=0.7",
]  # fmt: skip
LOADS = 5


def compared(place: Path) -> Path:
    """Ten methods by five seeds."""
    words = ["compare", "--algorithms", METHODS, "--seeds", "0-4", *SETTINGS, "--out", str(place)]
    subprocess.run([sys.executable, "-m", "fedkeel", *words], check=True, stdout=subprocess.DEVNULL)
    return place


def milliseconds(address: str) -> float:
    """Of one load."""
    node, chromium = shutil.which("node"), shutil.which("chromium")
    if node is None or chromium is None or not PLAYWRIGHT.is_dir():
        raise SystemExit(f"node, chromium and {PLAYWRIGHT} are needed; make test-extras installs the last one")
    command = [node, str(ROOT / "benchmarks" / "page.mjs"), str(PLAYWRIGHT), chromium, address]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparison", nargs="?", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        page = (given.comparison or compared(Path(temporary) / "ten-by-five")) / "report.html"
        times = [milliseconds(page.absolute().as_uri()) for _ in range(LOADS)]
        print(f"{page.stat().st_size / 1e6:.2f} MB")
    print(f"opens in {median(times):.0f} ms (median of {LOADS} loads, {min(times):.0f} to {max(times):.0f})")


if __name__ == "__main__":
    main()
