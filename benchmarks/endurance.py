"""Whether long runs stay within their means: memory, open files and disk over 2,000 rounds.

python benchmarks/endurance.py [--rounds 2000] [--only fedavg fedasmu ...]

Each method runs in a process of its own, with a checkpoint every tenth round. Memory is that of this process and of its
workers, proportional where they share it, without libraries. The files of rows grow with every round, as they should;
everything else in the run folder should not grow.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedkeel import Experiment, RoundEnd, run
from fedkeel.record.folder import ROWS

COMMON: dict[str, Any] = {
    "dataset": {"name": "fashion-mnist-mini", "test_limit": 100},
    "model": "linear",
    "clients": 50,
    "per_round": 10,
    "local": {"epochs": 2, "batch_size": 32},
    "fleet": {"speed_ratio": 5, "uplink_mbps": 5, "dropout": 0.05},
    "faults": {"hang": 0.02, "hang_seconds": 60, "lost_upload": 0.02, "twice": 0.02, "old_job": 0.02, "corrupt": 0.02},
    "evaluate_every": 10,
    "checkpoint": {"rounds": 10},
}
STACKS = {"kind": "vectorised", "stack": 10, "channels_last": False}
WORKERS = {"kind": "processes", "stack": 10, "channels_last": False, "workers": 2}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": "fedavg", "executor": WORKERS},
    "scaffold": {"algorithm": "scaffold", "executor": STACKS},
    "fedagg": {"algorithm": "fedagg", "executor": STACKS},
    "fedasmu": {"algorithm": "fedasmu", "executor": STACKS},
    "fedbuff": {"algorithm": "fedbuff", "executor": WORKERS},
}


def memory() -> float:
    """MB of this process and its children; libraries do not count, which other processes may share and leave."""
    own = os.getpid()
    children = [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    total = 0
    for pid in (own, *children):
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(row.split()[1]) for row in rows if row.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total / 1024


def disk(folder: Path) -> tuple[float, float, int]:
    """(MB of rows, MB of the rest, files)."""
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    rows = sum(size for path, size in sizes.items() if path.stem in ROWS and path.suffix == ".jsonl")
    return rows / 1e6, (sum(sizes.values()) - rows) / 1e6, len(sizes)


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def watch(name: str, rounds: int) -> None:
    marks = {*range(rounds // 10, rounds + 1, rounds // 10)}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / name

        def look(end: RoundEnd) -> None:
            if end.round in marks:
                rows, rest, files = disk(folder)
                here = f"{memory():9.1f} {tensors():8} {len(os.listdir('/proc/self/fd')):6}"
                print(f"{name:9} {end.round:6} {here} {rows:8.2f} {rest:8.3f} {files:6}", flush=True)

        run(Experiment(**COMMON, **CASES[name], rounds=rounds), folder, progress=look)
        left = [path.name for path in folder.rglob("*") if path.name.startswith(".") or path.name.endswith(".partial")]
        print(f"{name:9} temporary files left: {left or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--only", nargs="*", choices=[*CASES], default=[*CASES])
    asked = parser.parse_args()
    print("method     round MB memory  tensors  files  MB rows  MB rest  files in folder")
    for name in asked.only:
        process = multiprocessing.get_context("spawn").Process(target=watch, args=(name, asked.rounds))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{name}: ended with {process.exitcode}")


if __name__ == "__main__":
    main()
