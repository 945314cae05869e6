"""Run folders written by hand, for figures and reports."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedkeel.record.runs import RunRecord

EXPERIMENT = "{name: null, algorithm: {name: fedasmu}, partition: {kind: iid}, seed: 0}\n"
EVALUATION = {"round": 1, "virtual_seconds": 9.0, "accuracy": 0.5, "loss": 1.0, "train_loss": 1.0}


def record(
    path: Path, arrivals: Iterable[dict[str, Any]], unfinished: Iterable[dict[str, Any]] | None = None
) -> RunRecord:
    """A run with one evaluation and these rows, read back."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "experiment.yaml").write_text(EXPERIMENT)
    (path / "history.jsonl").write_text(json.dumps(EVALUATION) + "\n")
    for name, rows in (("clients.jsonl", arrivals), ("unfinished.jsonl", unfinished)):
        if rows is not None:
            (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunRecord.read(path)


HISTORY = b"".join(
    json.dumps({"round": n, "virtual_seconds": 9.5 * n, "accuracy": 0.5, "loss": 1.0, "train_loss": 1.0}).encode()
    + b"\n"
    for n in (1, 2, 3)
)
CLIENTS = b"".join(
    json.dumps(
        {
            "round": n, "client": n % 2, "dispatched": 9.0 * n, "began": 9.0 * n + 1, "finished": 9.0 * n + 5,
            "arrived": 9.0 * n + 6, "staleness": n, "weight": 0.25, "accepted": n != 2, "learning_rates": [0.1, 0.05],
        }
    ).encode()
    + b"\n"
    for n in (1, 2, 3)
)  # fmt: skip
UNFINISHED = b'{"client": 1, "dispatched": 30.0, "began": 31.0, "ended": 33.0, "why": "in flight"}\n'
WHOLE = {
    "experiment.yaml": EXPERIMENT.encode(),
    "history.jsonl": HISTORY,
    "clients.jsonl": CLIENTS,
    "unfinished.jsonl": UNFINISHED,
}


def write(folder: Path, **files: bytes) -> None:
    """A whole run folder, with other content in the files that are named."""
    for name, content in WHOLE.items():
        (folder / name).write_bytes(files.get(name.partition(".")[0], content))
