"""Offline files of Weights & Biases, read record by record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkeel import DivergenceError, Experiment, InputError, Sink, run
from fedkeel.sinks import named
from fedkeel.sinks.wandb import WeightsAndBiases
from tests.helpers.folders import faulty, resumed, stopped, stopped_again

pytestmark = pytest.mark.extras
wandb = pytest.importorskip("wandb")

HEADER, BLOCK = 7, 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """A file of wandb is a log as LevelDB writes it: blocks of pieces, each with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), HEADER, b""
    assert data.startswith(b":W&B")
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        place += HEADER + length
        whole += data[place - length : place]
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
            whole = b""


def files(folder: Path) -> list[Path]:
    """Those of complete logs: wandb's own process, which writes them, is waited for."""
    wandb.teardown()
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def told(path: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, Any], dict[str, Any], list[int]]:
    """(Curves, settings, summary, exit codes) of a file."""
    curves: dict[str, list[tuple[int, float]]] = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    codes = []
    for record in records(path):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                curves.setdefault(name, []).append((record.history.step.num, json.loads(item.value_json)))
        for item in record.run.config.update:
            config[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        for item in record.summary.update:
            summary[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        codes += [record.exit.exit_code] if record.HasField("exit") else []
    return curves, config, summary, codes


def check(found: dict[str, list[tuple[int, float]]], wanted: dict[str, list[tuple[int, float]]]) -> None:
    assert found.keys() == wanted.keys()
    for name, curve in wanted.items():
        assert found[name] == [(step, pytest.approx(value, rel=1e-12)) for step, value in curve]


def test_a_run(
    tmp_path: Path, described: Experiment, given: Any, expected: Any, summary: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    run(described, folder, sinks=[named("wandb:mine")], **given)
    assert capfd.readouterr() == ("", "")
    (path,) = files(folder)
    curves, config, end, codes = told(path)
    check(curves, expected(folder))
    assert config["local.lr"] == described.local.lr
    assert config["wire.0.kind"] == "cast"
    assert end["summary/final_accuracy"] == summary(folder)["final_accuracy"]
    assert end["ended"] == "complete"
    assert codes == [0]
    (made,) = [record.run for record in records(path) if record.HasField("run")]
    assert (made.project, made.display_name) == ("mine", "a")


def test_a_run_that_is_killed_and_stopped_has_no_point_twice(
    tmp_path: Path, described: Experiment, given: Any, expected: Any, killed: Callable[[int], Sink]
) -> None:
    folder = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt):
        run(described, folder, sinks=[WeightsAndBiases(), killed(3)], **given)
    (first,) = files(folder)
    curves, _, end, codes = told(first)
    assert [step for step, _ in curves["rounds/arrived"]] == [1, 2, 3]
    assert (end["ended"], codes) == ("stopped: KeyboardInterrupt", [1])
    stopped_again(folder, 4, sinks=[WeightsAndBiases()], **given)
    (second,) = files(folder)
    assert told(second)[2]["ended"].startswith("stopped: stopped after round 4")
    resumed(folder, sinks=[WeightsAndBiases()], **given)
    (last,) = files(folder)
    assert last.name == first.name == f"run-{json.loads((folder / 'wandb.json').read_text())['id']}.wandb"
    check(told(last)[0], expected(folder))
    assert told(last)[3] == [0]


def test_the_logs_of_other_runs_are_left_alone(tmp_path: Path, described: Experiment, given: Any) -> None:
    sink = WeightsAndBiases(folder=tmp_path / "b")
    run(described, tmp_path / "other", sinks=[sink], **given)
    stopped(described, tmp_path / "a", 2, sinks=[sink], **given)
    assert len(files(tmp_path / "b")) == 2
    resumed(tmp_path / "a", sinks=[sink], **given)
    assert [[step for step, _ in told(path)[0]["rounds/arrived"]] for path in files(tmp_path / "b")] == 2 * [
        [1, 2, 3, 4, 5]
    ]


def test_a_run_that_fails_and_has_no_run_folder(tmp_path: Path, given: Any) -> None:
    with pytest.raises(DivergenceError):
        run(faulty("fedavg", "serial", faults={}, local={"lr": 1e30}), sinks=[WeightsAndBiases()], **given)
    (path,) = files(tmp_path / "runs")
    _, _, end, codes = told(path)
    assert codes == [1]
    assert end["ended"].startswith("failed: ")


def test_a_folder_of_ones_own(tmp_path: Path, given: Any) -> None:
    run(faulty("fedavg", "serial", rounds=1), tmp_path / "a", sinks=[WeightsAndBiases(folder=tmp_path / "b")], **given)
    assert len(files(tmp_path / "b")) == 1
    assert not (tmp_path / "a" / "wandb").exists()


@pytest.mark.parametrize("project", ["", "a/b", "50%", 3])
def test_projects_that_wandb_would_refuse(project: Any) -> None:
    with pytest.raises(InputError, match=r"the wandb project must be a name without .*; got "):
        WeightsAndBiases(project)
