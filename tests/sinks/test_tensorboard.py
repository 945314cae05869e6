"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkeel import Experiment, Sink, run
from fedkeel.sinks import named
from fedkeel.sinks.tensorboard import TensorBoard
from tests.helpers.folders import resumed, stopped, stopped_again

pytestmark = pytest.mark.extras
pytest.importorskip("tensorboard")


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = read(folder)
    return {name: [(each.step, each.value) for each in found.Scalars(name)] for name in found.Tags()["scalars"]}


def check(found: dict[str, list[tuple[int, float]]], wanted: dict[str, list[tuple[int, float]]]) -> None:
    """The same points, in single precision."""
    found = {name: curve for name, curve in found.items() if not name.startswith("summary/")}
    assert found.keys() == wanted.keys()
    for name, curve in wanted.items():
        assert found[name] == [(step, pytest.approx(value, rel=1e-6)) for step, value in curve]


def ended(folder: Path) -> list[str]:
    return [each.tensor_proto.string_val[0].decode() for each in read(folder).Tensors("ended/text_summary")]


def test_a_run(tmp_path: Path, described: Experiment, given: Any, expected: Any, summary: Any) -> None:
    folder = tmp_path / "a"
    run(described, folder, sinks=[named("tensorboard")], **given)
    found = curves(folder / "tensorboard")
    check(found, expected(folder))
    assert found["summary/final_accuracy"] == [(5, pytest.approx(summary(folder)["final_accuracy"]))]
    assert ended(folder / "tensorboard") == ["complete"]


def test_the_page_of_hyper_parameters(tmp_path: Path, described: Experiment, given: Any) -> None:
    from tensorboard.plugins.hparams import metadata

    run(described, tmp_path / "a", sinks=[TensorBoard()], **given)
    content = read(tmp_path / "a" / "tensorboard").PluginTagToContent("hparams")
    told = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG]).hparams
    assert told["algorithm.name"].string_value == "fedlga"
    assert told["local.lr"].number_value == described.local.lr
    assert not told["evaluate_local"].bool_value
    shown = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG]).metric_infos
    assert [each.name.tag for each in shown] == ["history/accuracy", "history/loss"]
    status = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG]).status
    assert status == 1  # success


def test_a_run_that_is_stopped_and_killed_has_no_point_twice(
    tmp_path: Path, described: Experiment, given: Any, expected: Any, killed: Callable[[int], Sink]
) -> None:
    folder = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt):
        run(described, folder, sinks=[TensorBoard(), killed(3)], **given)
    assert [step for step, _ in curves(folder / "tensorboard")["rounds/arrived"]] == [1, 2, 3]
    stopped_again(folder, 4, sinks=[TensorBoard()], **given)
    assert [step for step, _ in curves(folder / "tensorboard")["rounds/arrived"]] == [1, 2, 3, 4]
    resumed(folder, sinks=[TensorBoard()], **given)
    check(curves(folder / "tensorboard"), expected(folder))
    said = ended(folder / "tensorboard")
    assert said[-1] == "complete"
    assert said[-2].startswith("stopped: stopped after round 4")


def test_a_later_file_has_a_later_name(tmp_path: Path, described: Experiment, given: Any) -> None:
    """TensorBoard reads files by name; names hold full seconds, and behind these nothing that grows."""
    folder = tmp_path / "a"
    stopped(described, folder, 3, sinks=[TensorBoard()], **given)
    (earlier,) = (folder / "tensorboard").iterdir()
    named_now = earlier.rename(earlier.with_name(f"events.out.tfevents.{int(time.time())}.~"))
    resumed(folder, sinks=[TensorBoard()], **given)
    assert len([*(folder / "tensorboard").iterdir()]) == 2
    assert min(path.name for path in (folder / "tensorboard").iterdir()) == named_now.name


def test_a_log_that_was_removed_is_written_again(
    tmp_path: Path, described: Experiment, given: Any, expected: Any
) -> None:
    folder = tmp_path / "a"
    stopped(described, folder, 3, sinks=[TensorBoard()], **given)
    for path in (folder / "tensorboard").iterdir():
        path.unlink()
    resumed(folder, sinks=[TensorBoard()], **given)
    check(curves(folder / "tensorboard"), expected(folder))


def test_a_folder_for_many_runs(tmp_path: Path, described: Experiment, given: Any, expected: Any) -> None:
    logs = tmp_path / "logs"
    for study in ("x", "y"):
        stopped(described, tmp_path / study / "a", 3, sinks=[named(f"tensorboard:{logs}")], **given)
    resumed(tmp_path / "y" / "a", sinks=[TensorBoard(logs)], **given)
    assert sorted(path.name for path in logs.iterdir()) == ["a", "a-2"]
    assert [step for step, _ in curves(logs / "a")["rounds/arrived"]] == [1, 2, 3]
    check(curves(logs / "a-2"), expected(tmp_path / "y" / "a"))
    assert not (tmp_path / "y" / "a" / "tensorboard").exists()


def test_runs_without_a_run_folder(tmp_path: Path, described: Experiment, given: Any) -> None:
    for _ in range(2):
        run(described.replace(name="mine"), sinks=[TensorBoard()], **given)
    logs = tmp_path / "runs" / "tensorboard"
    assert sorted(path.name for path in logs.iterdir()) == ["mine", "mine-2"]
    assert len(curves(logs / "mine-2")["rounds/arrived"]) == 5
