# ruff: noqa: E501
"""Writes down what short runs come to, as hashes, and compares later runs with that: did a change of the code change a bit?

python scripts/golden.py write golden.json     before the change
python scripts/golden.py check golden.json     after it, on the same machine
python scripts/golden.py check golden.json --only fedasmu stacks

All methods run on every executor, and more cases cover paces, fleets, faults, surveys, merges, interrupts, batch norm,
dropout and both floating-point types. The hashes hold for one machine and one build of PyTorch, so they are not kept in the
repository. Real times are left out of them. Native runs are those of one instruction set, which is in their names: on a
machine that has another one, they are not looked for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import fedkeel

try:
    from fedkeel.local.native import library
except ImportError:  # of a version without native kernels
    library = None

COMMON = [
    "dataset.train_limit=400", "dataset.test_limit=100", "partition=dirichlet", "clients=10",
    "per_round=4", "rounds=3", "local.epochs=2", "local.batch_size=16", "checkpoint.seconds=null", "model=mlp-400",
]  # fmt: skip
FLEET = ["fleet.speed_ratio=5", "fleet.uplink_mbps=2", "fleet.downlink_mbps=10"]
FAULTS = [
    "fleet.dropout=0.1", "faults.hang=0.1", "faults.hang_seconds=30", "faults.lost_upload=0.1", "faults.twice=0.1",
    "faults.old_job=0.1", "faults.corrupt=0.2", "faults.leave=0.02",
]  # fmt: skip
EXECUTORS = {
    "serial": ["executor.kind=serial", "executor.stack=0", "executor.channels_last=false"],
    "stacks": ["executor.kind=vectorised", "executor.stack=3", "executor.channels_last=false"],
    "workers": ["executor.kind=processes", "executor.stack=2", "executor.channels_last=false", "executor.workers=2"],
}
STACKS, SERIAL = EXECUTORS["stacks"], EXECUTORS["serial"]
THREADS = ["executor.kind=threads", "executor.stack=3", "executor.channels_last=false", "executor.workers=2"]
ASYNC = ("asofed", "fedasmu", "fedasync", "fedbuff", "fedsa", "port")
MORE = {
    "deadline": ["algorithm=fedavg", *STACKS, *FLEET, "schedule.deadline_seconds=40", "schedule.over_select=0.5"],
    "stream-deadline": ["algorithm=fedssmu", *STACKS, *FLEET, *FAULTS, "schedule.deadline_seconds=200", "rounds=5",
                        "schedule.over_select=0.5", "local.epochs=4"],
    "availability": ["algorithm=fedasync", *STACKS, *FLEET, "fleet.availability=0.4", "rounds=6"],
    "availability-rounds": ["algorithm=fedavg", *STACKS, *FLEET, "fleet.availability=0.4", "fleet.availability_period=300"],
    "availability-concurrency": ["algorithm=fedbuff", *STACKS, *FLEET, "fleet.availability=0.3", "rounds=6"],
    "limit": ["algorithm=fedavg", *STACKS, *FLEET, "limit_seconds=100", "rounds=100"],
    "limit-async": ["algorithm=fedbuff", *STACKS, *FLEET, "limit_seconds=333", "rounds=100", "evaluate_every=2"],
    "busy": ["algorithm=fedasync", *STACKS, *FLEET, "schedule.busy_share=0.2", "schedule.trigger_seconds=0.5", "rounds=5"],
    "interrupt": ["algorithm=port", *STACKS, *FLEET, "algorithm.minimum=2", "algorithm.staleness_bound=1", "rounds=8",
                  "local.epochs=5", "fleet.speed_ratio=20"],
    "interrupt-merge": ["algorithm=fedasmu", *STACKS, *FLEET, *FAULTS, "schedule.pace=concurrency", "rounds=8",
                        "local.epochs=5"],
    "merge-learned": ["algorithm=fedasmu", *STACKS, *FLEET, "algorithm.slot=learned", "rounds=8", "local.epochs=5"],
    "merge-workers": ["algorithm=fedasmu", *EXECUTORS["workers"], *FLEET, "rounds=6", "local.epochs=5"],
    "merge-serial": ["algorithm=fedasmu", *SERIAL, *FLEET, "rounds=6", "local.epochs=5", "algorithm.reward=proxy"],
    "merge-batchnorm": ["algorithm=fedasmu", "model=resnet20", *SERIAL, *FLEET, "local.epochs=3",
                        "dataset.train_limit=200"],
    "asmu-DA": ["algorithm=fedasmu", *STACKS, *FLEET, "algorithm.ablation=DA", "rounds=5", "local.epochs=4"],
    "asmu-literal": ["algorithm=fedasmu", *STACKS, *FLEET, "algorithm.reading=literal", "rounds=5", "local.epochs=4"],
    "scheme1": ["algorithm=fedlga", *STACKS, "sampling=scheme1", "fleet.rho=0.5", "local.epochs=4"],
    "partial-serial": ["algorithm=fedlga", *SERIAL, "fleet.rho=0.5", "local.epochs=4", "local.momentum=0.9"],
    "agg-probe": ["algorithm=fedagg", *STACKS, "algorithm.probe=true", "fleet.rho=0.5", "local.epochs=3", *FLEET],
    "agg-closed": ["algorithm=fedagg", *STACKS, "algorithm.closed_loop=true", "local.epochs=3"],
    "agg-closed-serial": ["algorithm=fedagg", *SERIAL, "algorithm.closed_loop=true", "local.epochs=3"],
    "agg-full": ["algorithm=fedagg", *SERIAL, "algorithm.gradient_batches=full", "local.epochs=3", "fleet.rho=0.5"],
    "agg-literal": ["algorithm=fedagg", *STACKS, "algorithm.reading=literal", "algorithm.sweeps=3"],
    "agg-literal-full": ["algorithm=fedagg", *SERIAL, "algorithm.reading=literal", "algorithm.sweeps=2",
                         "algorithm.gradient_batches=full"],
    "agg-refused": ["algorithm=fedagg", *STACKS, "gate.max_norm=0.6", *FLEET],
    "ent-bounds": ["algorithm=fedent", *STACKS, "algorithm.estimate_bounds=true", *FLEET],
    "ent-full": ["algorithm=fedent", *SERIAL, "algorithm.gradient_batches=full", "algorithm.estimate_bounds=true"],
    "ent-literal": ["algorithm=fedent", *EXECUTORS["workers"], "algorithm.reading=literal", "algorithm.smoothing=round"],
    "norm-literal": ["algorithm=fednorm", *STACKS, "algorithm.reading=literal"],
    "scaffold-full": ["algorithm=scaffold", *STACKS, "algorithm.option=I", "local.momentum=0.5"],
    "clip-decay": ["algorithm=fedavg", *STACKS, "local.clip_norm=0.5", "local.weight_decay=0.01", "local.momentum=0.9"],
    "clip-decay-serial": ["algorithm=fedsam", *SERIAL, "local.clip_norm=0.5", "local.weight_decay=0.01"],
    "decay": ["algorithm=fedprox", *STACKS, "local.lr_decay=0.9", "local.batch_size=full"],
    "norms": ["algorithm=fedavg", *STACKS, "gate.max_norm=0.8", "gate.min_norm=0.3", *FAULTS, *FLEET],
    "batchnorm": ["algorithm=fedavg", "model=resnet20", *SERIAL, "dataset.train_limit=120", "partition=iid"],
    "batchnorm-buffers": ["algorithm=fedbuff", "model=resnet20", *SERIAL, "dataset.train_limit=120", "partition=iid", *FLEET],
    "batchnorm-moon": ["algorithm=moon", "model=resnet20", *SERIAL, "dataset.train_limit=120", "partition=iid"],
    "batchnorm-gh": ["algorithm=fedgh", "local.lr=0.003", "model=resnet20", *SERIAL, "dataset.train_limit=120", "partition=iid", *FLEET],
    "batchnorm-mimelite": ["algorithm=mimelite", "model=resnet20", *EXECUTORS["workers"], "executor.stack=0", "dataset.train_limit=200",
                           "partition=iid"],
    "dropout": ["algorithm=mimelite", "model=mnist-cnn", *SERIAL, "dataset.train_limit=120", "partition=iid"],
    "dropout-last": ["algorithm=fedsam", "model=alexnet", *SERIAL, "dataset.train_limit=100", "partition=iid", "rounds=2"],
    "channels-last": ["algorithm=fedavg", "model=lenet5", "executor.kind=serial", "executor.stack=0",
                      "executor.channels_last=true"],
    "lenet-stacks": ["algorithm=moon", "model=lenet5", *STACKS, "dataset.train_limit=200"],
    "lenet-sam": ["algorithm=mofedsam", "model=lenet5", *STACKS, "dataset.train_limit=200"],
    "double": ["algorithm=scaffold", *STACKS, "dtype=float64"],
    "double-serial": ["algorithm=fedagg", *SERIAL, "dtype=float64"],
    "augment": ["algorithm=fedavg", *STACKS, "dataset.augment=crop-flip"],
    "local-tests": ["algorithm=fedavg", *STACKS, "evaluate_local=true", "evaluate_clients=true", "finetune.epochs=1"],
    "babu": ["algorithm=fedbabu", "model=lenet5", *SERIAL, "evaluate_clients=true"],
    "target": ["algorithm=fedavg", *STACKS, "target_accuracy=0.3", "stop_at_target=true", "rounds=30"],
    "composed": ["client=fedprox", "server=fedadam", "algorithm.server_lr=0.01", *STACKS],
    "composed-async": ["client=fedprox", "server=fedbuff", *STACKS, *FLEET],
    "diverged": ["algorithm=fedavg", *STACKS, "local.lr=3", "gate.diverged=refuse", "gate.max_loss=3", "rounds=4"],
    "many": ["algorithm=fedavg", *STACKS, "clients=60", "per_round=40", "executor.stack=16", "partition=iid"],
}  # fmt: skip
NATIVE = {
    "plain": ["algorithm=fedavg", "model=lenet5", *THREADS],
    "alone": ["algorithm=fedavg", "model=lenet5", *SERIAL, "executor.native=true"],
    "workers": ["algorithm=scaffold", "model=lenet5", *EXECUTORS["workers"], "executor.native=true"],
    "steps": ["algorithm=fedsam", "model=lenet5", *THREADS, "local.clip_norm=0.5"],
    "merges": ["algorithm=fedasmu", "model=mlp-400", *THREADS, *FLEET, *FAULTS, "local.epochs=4", "rounds=5"],
    "everything": ["algorithm=fedprox", "model=mnist-cnn", *THREADS, "local.clip_norm=0.5", "local.weight_decay=0.01",
                   "local.momentum=0.9", "local.batch_size=full", "dataset.train_limit=200"],
    "masked": ["algorithm=fedbabu", "model=lenet5", *THREADS, "evaluate_clients=true"],
    "double": ["algorithm=fedavg", "model=cnn", *THREADS, "dtype=float64", "dataset.train_limit=100"],
    "averages": ["algorithm=fedavg", "model=vgg11", "model.norm=none", *THREADS, "dataset.train_limit=60", "rounds=1",
                 "dataset.resize=32"],
}  # fmt: skip
"""By native kernels, whose bits depend on the instruction set: it is part of a case's name."""
ROWS = ("history", "clients", "rounds", "unfinished", "refused")


def cases() -> Iterator[tuple[str, list[str]]]:
    """Names, and the settings of runs."""
    for name in _names():
        for executor, words in EXECUTORS.items():
            yield f"{name}-{executor}", [f"algorithm={name}", *words]
        more = ["local.epochs=4", "rounds=5"] if name in (*ASYNC, "fedssmu") else []
        yield f"{name}-faults", [f"algorithm={name}", *STACKS, *FLEET, *FAULTS, *more]
    yield from MORE.items()
    if found := library and library.load():
        yield from ((f"native-{name}-{found.isa}", words) for name, words in NATIVE.items())


def _names() -> list[str]:
    """All methods, by the command line: versions differ in where the code has them."""
    command = [sys.executable, "-m", "fedkeel", "list", "algorithms", "--json"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [each["name"] for each in json.loads(told)]


def outcome(words: list[str]) -> dict[str, str]:
    """Hashes of all that a run leaves, or the error that it ends with."""
    settings = {word.partition("=")[0]: word for word in [*COMMON, *words]}
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings(action="ignore"):
        folder = Path(root) / "run"
        try:
            fedkeel.run(fedkeel.Experiment.load(overrides=[*settings.values()]), folder)
        except fedkeel.FedkeelError as error:
            return {"error": str(error).replace(root, "")}
        told = {name: re.sub(r'"wall_seconds": [^,}]+', "", (folder / f"{name}.jsonl").read_text()) for name in ROWS}
        summary = json.loads((folder / "summary.json").read_text())
        known = {k: v for k, v in summary.items() if k in TOLD}
        told["summary"] = json.dumps(known, sort_keys=True)
        for extra in folder.glob("client_*.jsonl"):  # accuracy, or metrics
            rows = [json.loads(line) for line in extra.read_text().splitlines()]
            kept = [{k: v for k, v in row.items() if k in ("client", "accuracy", "finetuned")} for row in rows]
            told["clients tested"] = json.dumps(kept)
        tensors = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))
                                          if "checkpoint" not in path.parts and path.stem != "best_model")).hexdigest()  # fmt: skip
    return {"model": tensors, **{name: hashlib.sha256(text.encode()).hexdigest() for name, text in told.items()}}


TOLD = (
    "bytes_down", "bytes_to_target", "bytes_up", "final_accuracy", "final_loss", "best_accuracy", "jobs_in_flight",
    "jobs_lost", "parameters", "rounds", "rounds_to_target", "updates", "updates_refused", "updates_to_target",
    "uploads_turned_away", "virtual_seconds", "virtual_seconds_to_target",
)  # fmt: skip
"""Keys of the summary that tell a result."""


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="Cases whose names contain one of these.")
    asked = parser.parse_args()
    chosen = {name: words for name, words in cases() if any(part in name for part in asked.only)}
    found = {}
    known = json.loads(asked.file.read_text()) if asked.what == "check" else {}
    wrong = 0
    for name, words in chosen.items():
        found[name] = outcome(words)
        if asked.what == "check" and found[name] != known.get(name):
            wrong += 1
            before = known.get(name, {})
            print(name, "differs:", [k for k in {**before, **found[name]} if before.get(k) != found[name].get(k)],
                  found[name].get("error", ""), flush=True)  # fmt: skip
    if asked.what == "write":
        asked.file.write_text(json.dumps(found, indent=1))
    failed = sum("error" in each for each in found.values())
    print(f"{len(found)} runs, of which {failed} end with an error; {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
