"""Run folders written by hand."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedkeel.report.runs import RunRecord

EXPERIMENT = "{name: null, algorithm: {name: fedasmu}, partition: {kind: iid}, seed: 0}\n"
EVALUATION = {"round": 1, "virtual_seconds": 9.0, "accuracy": 0.5, "loss": 1.0, "train_loss": 1.0}


def record(
    path: Path, arrivals: Iterable[dict[str, Any]], unfinished: Iterable[dict[str, Any]] | None = None
) -> RunRecord:
    path.mkdir(parents=True, exist_ok=True)
    (path / "experiment.yaml").write_text(EXPERIMENT)
    (path / "history.jsonl").write_text(json.dumps(EVALUATION) + "\n")
    for name, rows in (("clients.jsonl", arrivals), ("unfinished.jsonl", unfinished)):
        if rows is not None:
            (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunRecord.read(path)
