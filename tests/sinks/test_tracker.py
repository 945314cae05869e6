"""Every round is told once, with the numbers of the run folder, whatever becomes of the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import DivergenceError, Experiment, Sink, Start, run
from fedkeel.errors import FedkeelError
from fedkeel.record.rows import Arrivals, Evaluation, RoundEnd
from fedkeel.runner.sinks import checked
from fedkeel.sinks.memory import Known, Memory
from fedkeel.sinks.scalars import Point, Scalars, point, settings
from fedkeel.sinks.tracker import Tracker, run_name
from tests.helpers.folders import faulty, resumed, rows, same, stopped, stopped_again


class Notes(Tracker):
    """A tracker that keeps everything in this process."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.ended: list[Any] = []

    def _open(self, start: Start) -> int:
        return max((told.round for told in self.points), default=0)

    def _write(self, told: Point) -> None:
        self.points.append(told)

    def _complete(self, summary: Scalars) -> None:
        self.ended.append(summary)

    def _broken(self, why: str, asked: bool) -> None:
        self.ended.append((why, asked))

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        found: dict[str, list[tuple[int, float]]] = {}
        for told in self.points:
            for name, value in told.scalars.items():
                found.setdefault(name, []).append((told.round, value))
        return found


def test_every_number_is_that_of_the_run_folder(
    tmp_path: Path, described: Experiment, given: Any, expected: Any, summary: Any
) -> None:
    notes = Notes()
    run(described, tmp_path / "a", sinks=[notes], **given)
    wanted = expected(tmp_path / "a")
    assert notes.curves.keys() == wanted.keys()
    for name, curve in wanted.items():
        assert notes.curves[name] == [(step, pytest.approx(value, rel=1e-12)) for step, value in curve]
    assert {"method/stragglers", "rounds/staleness", "history/virtual_seconds"} <= wanted.keys()
    (told,) = notes.ended
    wrote = summary(tmp_path / "a")
    assert told["summary/final_accuracy"] == wrote["final_accuracy"]
    assert wrote["uploads_turned_away"]
    for reason, count in wrote["uploads_turned_away"].items():
        assert told[f"summary/uploads_turned_away.{reason}"] == count
    assert "summary/algorithm" not in told
    assert all(type(value) is float for value in told.values())


@pytest.mark.parametrize("algorithm", ["fedlga", "fedbuff"])
def test_a_run_that_went_on_without_the_sink_is_told_from_its_folder(
    algorithm: str, tmp_path: Path, given: Any, expected: Any
) -> None:
    described = faulty(algorithm, "serial", evaluate_every=2)
    notes = Notes()
    stopped(described, tmp_path / "a", 1, sinks=[notes], **given)
    stopped_again(tmp_path / "a", 3, **given)
    assert [told.round for told in notes.points] == [1]
    resumed(tmp_path / "a", sinks=[notes], **given)
    assert [told.round for told in notes.points] == [1, 2, 3, 4, 5]
    wanted = expected(tmp_path / "a")
    assert notes.curves.keys() == wanted.keys()
    for name, curve in wanted.items():
        assert notes.curves[name] == [(step, pytest.approx(value, rel=1e-12)) for step, value in curve]


def test_rounds_that_a_killed_run_does_again_are_not_told_again(
    tmp_path: Path, described: Experiment, given: Any, killed: Callable[[int], Sink]
) -> None:
    notes = Notes()
    with pytest.raises(KeyboardInterrupt):
        run(described, tmp_path / "a", sinks=[notes, killed(3)], **given)
    assert notes.ended == [("KeyboardInterrupt", True)]
    resumed(tmp_path / "a", sinks=[notes], **given)
    assert [told.round for told in notes.points] == [1, 2, 3, 4, 5]


def test_a_run_that_fails_is_told_as_one(given: Any) -> None:
    notes = Notes()
    with pytest.raises(DivergenceError):
        run(faulty("fedavg", "serial", faults={}, local={"lr": 1e30}), sinks=[notes], **given)
    ((why, asked),) = notes.ended
    assert not asked
    assert "round" in why


def test_the_result_is_that_of_a_run_without_sinks(tmp_path: Path, described: Experiment, given: Any) -> None:
    run(described, tmp_path / "a", sinks=[Notes()], **given)
    run(described, tmp_path / "b", **given)
    same(tmp_path / "a", tmp_path / "b")


def test_a_round_in_which_nobody_arrives_has_no_means(given: Any) -> None:
    notes = Notes()
    schedule = {"deadline_seconds": 1e-6}
    run(faulty("fedavg", "serial", schedule=schedule, faults={}, rounds=1), sinks=[notes], **given)
    assert notes.points[0].scalars["rounds/arrived"] == 0
    assert not {"rounds/learning_rate", "rounds/staleness", "rounds/train_loss"} & notes.points[0].scalars.keys()


def test_settings_have_the_names_that_the_command_line_takes(described: Experiment) -> None:
    told = settings(described)
    assert told["local.lr"] == described.local.lr
    assert told["algorithm.name"] == "fedlga"
    assert told["wire.0.kind"] == "cast"
    assert told["faults.corruptions"] == '["nan", "infinite", "shape", "dtype", "future"]'
    assert told["evaluate_local"] is False
    assert "target_accuracy" not in told
    assert all(isinstance(value, str | int | float) for value in told.values())


def test_characters_that_a_tracker_refuses_are_replaced() -> None:
    end = RoundEnd(1, 2.0, 0.1, None, Arrivals(), [], [], {"φ [%]": 2.5, "many": [1.0, 2.0], "yes": True}, None)
    assert point(end).scalars == {"rounds/arrived": 0, "rounds/lost": 0, "rounds/refused": 0, "method/_ ___": 2.5}


def test_a_tracker_is_a_sink_without_misspelt_methods() -> None:
    assert checked([Notes()], None)


def test_a_run_is_named_like_its_folder(tmp_path: Path, described: Experiment) -> None:
    assert run_name(Start(described, tmp_path / "x", 0, ())) == "x"
    assert run_name(Start(described.replace(name="mine"), None, 0, ())) == "mine"


def test_what_is_kept_is_of_one_place(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "x")
    assert memory.recall("here") is None
    memory.keep(Known("here", "id"))
    memory.told(3)
    assert Memory(tmp_path, "x").recall("here") == Known("here", "id", 3)
    assert Memory(tmp_path, "x").recall("there") is None
    assert Memory(tmp_path, "y").recall("here") is None
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    Memory(None, "x").keep(Known("here", "id"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"where": "", "id": "a", "told": "x"}'])
def test_a_damaged_memory_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FedkeelError, match=r"x\.json cannot be read; remove it to begin a new log"):
        Memory(tmp_path, "x").recall("here")


def drawn() -> tuple[Any, ...]:
    """The next numbers of all generators that are shared in a process."""
    return random.random(), np.random.random(), torch.rand(1).item()


@pytest.mark.extras
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_no_tracker_changes_a_result(tracker: str, tmp_path: Path, described: Experiment, given: Any) -> None:
    pytest.importorskip(tracker)
    from fedkeel.sinks import named

    def seed() -> None:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)

    seed()
    run(described, tmp_path / "b", **given)
    before = drawn()
    seed()
    word = {"tensorboard": f"tensorboard:{tmp_path}/logs", "mlflow": f"mlflow:sqlite:///{tmp_path}/m.db"}
    run(described, tmp_path / "a", sinks=[named(word.get(tracker, tracker))], **given)
    assert drawn() == before
    assert rows(tmp_path / "a", "rounds") == rows(tmp_path / "b", "rounds")
    assert rows(tmp_path / "a", "clients") == rows(tmp_path / "b", "clients")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_metrics_are_told_under_their_names_with_those_of_validation_and_of_clients() -> None:
    counts = {"round": 2, "version": 1, "virtual_seconds": 1.0, "wall_seconds": 1.0, "bytes_up": 1, "bytes_down": 1}
    evaluation = Evaluation(
        **counts,  # type: ignore[arg-type]
        metrics={"rmse": 0.5, "r2": None},
        loss=0.25,
        updates=3,
        validation={"loss": 0.75, "rmse": 0.875},
        clients={"rmse": {"mean": 0.625, "worst_decile": 2.0}},
        by_class={"f1": [0.5, None]},
    )
    told = point(RoundEnd(2, 2.0, 0.1, None, Arrivals(), [], [], {}, evaluation)).scalars
    assert (told["history/rmse"], told["history/loss"], "history/r2" in told) == (0.5, 0.25, False)
    assert (told["validation/rmse"], told["validation/loss"]) == (0.875, 0.75)
    assert (told["clients/rmse.mean"], told["clients/rmse.worst_decile"]) == (0.625, 2.0)
    assert not any("by_class" in name or name.endswith("/round") for name in told)
