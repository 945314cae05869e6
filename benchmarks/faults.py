"""The fault matrix: what is injected into a fleet, how often, and what comes of it.

python benchmarks/faults.py [--rounds 30] [--only hang twice ...]

One run for each fault and pace, with the fault's chance at 0.2 and everything else in order. What was injected is
counted where it is drawn; what came of it is read from the run folder's files.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel import Experiment, FedkeelError, run
from fedkeel.world.faults import FaultSettings
from fedkeel.world.fleet.profile import Clients, Fleet

CHANCE = 0.2
COMMON: dict[str, Any] = {
    "dataset": {"name": "fashion-mnist-mini", "test_limit": 500},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "model": "linear",
    "clients": 50,
    "per_round": 10,
    "local": {"epochs": 3, "batch_size": 32},
    "executor": {"kind": "vectorised", "stack": 10, "channels_last": False},
}
PACES: dict[str, dict[str, Any]] = {
    "rounds (SCAFFOLD)": {"algorithm": "scaffold", "schedule": {"deadline_seconds": 120}},
    "rounds, uploads used at once (FedSSMU)": {"algorithm": "fedssmu", "schedule": {"deadline_seconds": 120}},
    "every 10 s (FedASMU)": {"algorithm": "fedasmu"},
    "always 30 busy (FedBuff)": {"algorithm": "fedbuff"},
}
"""Paces, and the method that is run at each."""
FLEET = {"speed_ratio": 5, "uplink_mbps": 5, "downlink_mbps": 20}
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "crash during a job": {"fleet": {**FLEET, "dropout": CHANCE}},
    "hang for 200 s": {"faults": {"hang": CHANCE, "hang_seconds": 200}},
    "leave for good": {"faults": {"leave": 0.02}},
    "upload lost": {"faults": {"lost_upload": CHANCE}},
    "upload sent twice": {"faults": {"twice": CHANCE}},
    "upload of the previous job": {"faults": {"old_job": CHANCE}},
    "NaN": {"faults": {"corrupt": CHANCE, "corruptions": ["nan"]}},
    "infinite": {"faults": {"corrupt": CHANCE, "corruptions": ["infinite"]}},
    "norm above gate.max_norm=10": {
        "faults": {"corrupt": CHANCE, "corruptions": ["huge"]}, "gate": {"max_norm": 10}
    },
    "wrong shape": {"faults": {"corrupt": CHANCE, "corruptions": ["shape"]}},
    "wrong dtype": {"faults": {"corrupt": CHANCE, "corruptions": ["dtype"]}},
    "version from the future": {"faults": {"corrupt": CHANCE, "corruptions": ["future"]}},
    "all of them, and devices switched off half of the time": {
        "fleet": {**FLEET, "dropout": 0.05, "availability": 0.5, "availability_period": 300},
        "faults": {
            "hang": 0.05, "hang_seconds": 200, "leave": 0.002, "lost_upload": 0.05, "twice": 0.05, "old_job": 0.05,
            "corrupt": 0.1,
        },
    },
    "every device leaves": {"faults": {"leave": 1.0}},
    "every upload is lost": {"faults": {"lost_upload": 1.0}},
}  # fmt: skip


class Counted:
    """Counts what is drawn while it is entered, by dispatch and client: the first dispatch is tried and then done."""

    def __init__(self) -> None:
        self.faults: set[tuple[int, int]] = set()
        self._draw, self._fails_at = FaultSettings.draw, Fleet.fails_at

    def __enter__(self) -> Counted:
        def draw(settings: FaultSettings, clients: Clients, seed: int, wave: int) -> Any:
            faults, shares = self._draw(settings, clients, seed, wave)
            self.faults |= {(wave, int(client)) for client, fault in zip(clients, faults, strict=True) if fault}
            return faults, shares

        def fails_at(fleet: Fleet, clients: Clients, seed: int, wave: int) -> Any:
            shares = self._fails_at(fleet, clients, seed, wave)
            self.faults |= {(wave, int(client)) for client in clients[~np.isnan(shares)]}
            return shares

        FaultSettings.draw, Fleet.fails_at = draw, fails_at  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        FaultSettings.draw, Fleet.fails_at = self._draw, self._fails_at  # type: ignore[method-assign]


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def one(fault: str, pace: str, rounds: int) -> str:
    """What was injected, and what came of it."""
    experiment = Experiment(**{"fleet": FLEET, **COMMON, **PACES[pace], **FAULTS[fault], "rounds": rounds})
    ended = ""
    with tempfile.TemporaryDirectory() as root, Counted() as counted:
        folder = Path(root) / "run"
        try:
            run(experiment, folder)
        except FedkeelError:
            ended = "; the run stops"
        told = [f"{len(rows(folder, 'clients'))} accepted"]
        told += [f"{count} {why}" for why, count in Counter(r["why"] for r in rows(folder, "unfinished")).most_common()]
        refused = Counter(row["reason"] for row in rows(folder, "refused"))
        told += [f"{count} refused: {reason}" for reason, count in refused.most_common()]
        empty = sum(not row["arrived"] for row in rows(folder, "rounds"))
        told += [f"{empty} empty rounds"] if empty else []
        last = [row["accuracy"] for row in rows(folder, "history")[-3:]]
    accuracy = f"; {100 * np.mean(last):.1f} %" if last else ""
    return f"**{len(counted.faults)}**: {', '.join(told)}{accuracy}{ended}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", choices=[*FAULTS], default=[*FAULTS])
    asked = parser.parse_args()
    print(f"| injected | {' | '.join(PACES)} |")
    print("|---" * (1 + len(PACES)) + "|")
    for fault in asked.only:
        print(f"| {fault} | {' | '.join(one(fault, pace, asked.rounds) for pace in PACES)} |", flush=True)


if __name__ == "__main__":
    main()
