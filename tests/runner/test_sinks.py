"""Sinks: what they are told, when, and what becomes of a run when one of them fails."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedkeel import (
    DivergenceError,
    FedkeelError,
    InputError,
    RoundEnd,
    Sink,
    SinkError,
    Start,
    Stop,
    StoppedError,
    resume,
    run,
)
from fedkeel.local.executors import choose
from tests.helpers import federation
from tests.helpers.folders import faulty, left, resumed, rows, same


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here


def given() -> dict[str, Any]:
    return {"data": federation.data(), "model": federation.net(4)}


class Notes(Sink):
    """Writes down what it is told, and raises an error at one of these moments."""

    def __init__(self, *fails: object) -> None:
        self.told: list[Any] = []
        self.starts: list[Start] = []
        self.fails = fails
        self.error: BaseException | None = None

    def begin(self, start: Start) -> None:
        self.starts.append(start)
        self._note("begin")

    def round(self, end: RoundEnd) -> None:
        self._note(end.round)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._note("finish")
        assert summary["rounds"] == 5

    def abort(self, error: BaseException) -> None:
        self.error = error
        self._note("abort")

    def _note(self, what: object) -> None:
        self.told.append(what)
        if what in self.fails:
            raise OSError(28, "no space left for notes")


def test_a_sink_hears_of_the_whole_run(tmp_path: Path) -> None:
    sinks, told = [Notes(), Notes()], []
    result = run(faulty("fedavg"), tmp_path / "a", sinks=sinks, progress=lambda end: told.append(end.round), **given())
    for sink in sinks:
        assert sink.told == ["begin", 1, 2, 3, 4, 5, "finish"]
        (start,) = sink.starts
        assert (start.experiment, start.folder, start.round, [*start.history]) == (
            result.experiment, tmp_path / "a", 0, [],
        )  # fmt: skip
    assert told == [1, 2, 3, 4, 5]


def test_a_sink_defines_only_what_it_needs() -> None:
    class Last(Sink):
        def finish(self, summary: Mapping[str, Any]) -> None:
            self.summary = summary

    last = Last()
    assert run(faulty("fedavg"), sinks=[last], **given()).summary == last.summary


def test_rows_are_in_the_folder_before_a_sink_is_told(tmp_path: Path) -> None:
    class Reader(Sink):
        def round(self, end: RoundEnd) -> None:
            assert rows(tmp_path / "a", "rounds")[-1] == end.row.plain()
            assert len(rows(tmp_path / "a", "history")) == end.round

        def finish(self, summary: Mapping[str, Any]) -> None:
            assert (tmp_path / "a" / "summary.json").exists()
            seen.append(True)

    seen: list[bool] = []
    run(faulty("fedavg"), tmp_path / "a", sinks=[Reader()], **given())
    assert seen


def test_a_resumed_run_begins_where_it_stopped(tmp_path: Path) -> None:
    stop, sink = Stop(), Notes()

    def ask(end: RoundEnd) -> None:
        stop.asked = end.round == 3

    with pytest.raises(StoppedError, match="after round 3"):
        run(faulty("fedavg"), tmp_path / "a", sinks=[sink], progress=ask, stop=stop, **given())
    assert sink.told == ["begin", 1, 2, 3, "abort"]
    assert isinstance(sink.error, StoppedError)
    again = Notes()
    result = resume(tmp_path / "a", sinks=[again], tell=lambda _: None, **given())
    assert again.told == ["begin", 4, 5, "finish"]
    assert again.starts[0].round == 3
    assert [*again.starts[0].history] == result.history[:3]


def test_a_sink_is_told_how_the_run_ended(tmp_path: Path) -> None:
    diverged = Notes()
    with pytest.raises(DivergenceError) as error:
        run(faulty("fedavg", gate={"max_loss": 1e-9}), tmp_path / "a", sinks=[diverged], **given())
    assert diverged.told == ["begin", "abort"]
    assert diverged.error is error.value
    assert "there is no checkpoint yet" in str(diverged.error)

    class Interrupts(Sink):
        def round(self, end: RoundEnd) -> None:
            raise KeyboardInterrupt

    interrupted = Notes()
    with pytest.raises(KeyboardInterrupt):
        run(faulty("fedavg"), tmp_path / "b", sinks=[interrupted, Interrupts()], **given())
    assert interrupted.told == ["begin", 1, "abort"]
    assert isinstance(interrupted.error, KeyboardInterrupt)
    assert not (tmp_path / "b" / "checkpoint").exists()  # at once means at once


def test_how_to_go_on_is_told_only_where_a_run_can_go_on(tmp_path: Path) -> None:
    class Interrupts(Sink):
        def __init__(self, when: object) -> None:
            self.when = when

        def round(self, end: RoundEnd) -> None:
            self.interrupt(end.round)

        def finish(self, summary: Mapping[str, Any]) -> None:
            self.interrupt("finish")

        def interrupt(self, when: object) -> None:
            if when == self.when:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        run(faulty("fedavg"), tmp_path / "a", sinks=[Interrupts(2)], **given())
    assert [note.partition(";")[0] for note in error.value.__notes__] == ["there is no checkpoint yet"]
    with pytest.raises(KeyboardInterrupt) as error:
        run(faulty("fedavg"), tmp_path / "b", sinks=[Interrupts("finish")], **given())
    assert (tmp_path / "b" / "summary.json").exists()
    assert not hasattr(error.value, "__notes__")


def test_what_came_after_the_last_round_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the run fails behind it."""

    def fails(*_: object) -> None:
        raise FedkeelError("no room for the model")

    run(faulty("fedasync"), tmp_path / "whole", **given())
    monkeypatch.setattr("fedkeel.api.save", fails)
    with pytest.raises(FedkeelError, match=r"^no room for the model; the last checkpoint is .*round-5"):
        run(faulty("fedasync"), tmp_path / "a", **given())
    found = rows(tmp_path / "a", "unfinished")
    assert "in flight" in [row["why"] for row in found]
    assert found == rows(tmp_path / "whole", "unfinished")
    assert rows(tmp_path / "a", "refused") == rows(tmp_path / "whole", "refused")


# Sinks that fail.


@pytest.mark.slow
@pytest.mark.parametrize("round", [1, 3, 5])
@pytest.mark.parametrize("name", ["fedavg", "fedasync"])
def test_a_sink_that_fails_ends_the_run_and_loses_nothing(name: str, round: int, tmp_path: Path) -> None:
    run(faulty(name), tmp_path / "whole", **given())
    broken, other = Notes(round), Notes()
    with pytest.raises(FedkeelError) as error:
        run(faulty(name), tmp_path / "a", sinks=[broken, other], **given())
    checkpoint = tmp_path / "a" / "checkpoint" / f"round-{round}"
    assert str(error.value) == (
        f"sink Notes failed after round {round} (OSError: [Errno 28] no space left for notes); the last checkpoint is "
        f"{checkpoint}; resume with: fedkeel.resume({str(tmp_path / 'a')!r}, data=..., model=...)"
    )
    assert isinstance(error.value.__cause__, OSError)
    assert broken.told == other.told == ["begin", *range(1, round + 1), "abort"]
    assert other.error is error.value
    again = Notes()
    resume(tmp_path / "a", sinks=[again], tell=lambda _: None, **given())
    assert again.told == ["begin", *range(round + 1, 6), "finish"]
    same(tmp_path / "whole", tmp_path / "a")


def test_a_function_that_fails_is_called_progress(tmp_path: Path) -> None:
    def fails(_: RoundEnd) -> None:
        raise KeyError("accuracy")

    with pytest.raises(FedkeelError, match=r"^sink progress failed after round 1 \(KeyError: 'accuracy'\); the last"):
        run(faulty("fedavg"), tmp_path / "a", progress=fails, **given())


def test_a_sink_that_fails_before_the_first_round(tmp_path: Path) -> None:
    broken, other = Notes("begin"), Notes()
    said = r"^sink Notes failed before the first round \(OSError: .*\); there is no checkpoint yet; .*"
    with pytest.raises(SinkError, match=said):
        run(faulty("fedavg"), tmp_path / "a", sinks=[broken, other], **given())
    assert broken.told == ["begin"]
    assert other.told == ["begin", "abort"]
    result, _ = resumed(tmp_path / "a", **given())
    assert len(result.history) == 5


def test_a_sink_that_fails_when_the_run_is_complete(tmp_path: Path) -> None:
    broken, other = Notes("finish"), Notes()
    with pytest.raises(SinkError, match=r"failed after the end of the run, which is complete \(OSError"):
        run(faulty("fedavg"), tmp_path / "a", sinks=[broken, other], **given())
    assert broken.told == other.told == ["begin", 1, 2, 3, 4, 5, "finish"]
    run(faulty("fedavg"), tmp_path / "whole", **given())
    same(tmp_path / "whole", tmp_path / "a")


def test_sinks_that_fail_together() -> None:
    sinks = [Notes(2), Notes(2, "abort")]
    with pytest.raises(SinkError, match="failed after round 2") as error:
        run(faulty("fedavg"), sinks=sinks, **given())
    assert [sink.told for sink in sinks] == [["begin", 1, 2, "abort"]] * 2
    first, second = error.value.__notes__
    assert first.startswith("sink Notes failed after round 2")
    assert second.startswith("sink Notes failed, too (OSError")


def test_the_disk_fails_when_a_sink_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    class Fills(Sink):
        def round(self, end: RoundEnd) -> None:
            if end.round == 3:
                monkeypatch.setattr(os, "fsync", full)
                raise ValueError("mine")

    described = faulty("fedavg", checkpoint={"rounds": 2})
    with pytest.raises(SinkError, match=r"Fills failed after round 3 \(ValueError: mine\); .*checkpoint/round-2; "):
        run(described, tmp_path / "a", sinks=[Fills()], **given())
    monkeypatch.setattr(os, "fsync", lambda _: None)
    resumed(tmp_path / "a", **given())
    run(described, tmp_path / "whole", **given())
    same(tmp_path / "whole", tmp_path / "a")


@pytest.mark.parametrize("sink", [print, Notes, {}, None])
def test_what_is_no_sink_is_refused_before_anything_else(sink: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^sinks: .* (lacks begin|is a class).*; give objects with"):
        run(faulty("fedavg"), tmp_path / "a", sinks=[sink], **given())
    assert not (tmp_path / "a").exists()


def test_sinks_may_come_from_a_generator_and_nothing_else_is_taken_for_one() -> None:
    heard = Notes()
    run(faulty("fedavg"), sinks=(sink for sink in [heard]), **given())
    assert heard.told == ["begin", 1, 2, 3, 4, 5, "finish"]
    with pytest.raises(InputError, match=r"^sinks must be a list of sinks; got "):
        run(faulty("fedavg"), sinks=heard, **given())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^progress must be a function of a RoundEnd; got 3"):
        run(faulty("fedavg"), progress=3, **given())  # type: ignore[arg-type]


def test_a_folder_with_a_run_that_is_not_complete_says_how_to_go_on(tmp_path: Path) -> None:
    stop = Stop()
    stop.asked = True
    with pytest.raises(StoppedError):
        run(faulty("fedavg"), tmp_path / "a", stop=stop, **given())
    with pytest.raises(InputError, match=r"is not empty; .*; to go on with the run in it: fedkeel run --resume .*/a$"):
        run(faulty("fedavg"), tmp_path / "a", **given())
    resume(tmp_path / "a", tell=lambda _: None, **given())
    with pytest.raises(InputError, match=r"is not empty; name a new or empty folder$"):
        run(faulty("fedavg"), tmp_path / "a", **given())


def test_a_misspelt_method_of_a_sink_is_told() -> None:
    class Typo(Sink):
        def rounds(self, end: RoundEnd) -> None:
            raise AssertionError

    with pytest.raises(InputError, match=r"^sinks: Typo has a method rounds, .*did you mean round\?"):
        run(faulty("fedavg"), sinks=[Typo()], **given())


def test_any_object_with_these_methods_is_a_sink() -> None:
    class Own:
        def __init__(self) -> None:
            self.rounds = 0

        def begin(self, start: Start) -> None: ...

        def round(self, end: RoundEnd) -> None:
            self.rounds += 1

        def finish(self, summary: Mapping[str, Any]) -> None: ...

        def abort(self, error: BaseException) -> None: ...

    own = Own()
    run(faulty("fedavg"), sinks=[own], **given())
    assert own.rounds == 5


def test_a_complete_run_has_no_traces_of_its_sinks(tmp_path: Path) -> None:
    run(faulty("fedavg"), tmp_path / "a", sinks=[Notes()], **given())
    run(faulty("fedavg"), tmp_path / "b", **given())
    assert left(tmp_path / "a") == left(tmp_path / "b")


# The model.


@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "fedgh"])
def test_progress_receives_the_model_that_was_tested(name: str, tmp_path: Path) -> None:
    models: list[nn.Module] = []
    scores: list[float] = []
    data = federation.data()

    def progress(end: RoundEnd, model: nn.Module) -> None:
        models.append(model)
        if end.evaluation is not None and name != "fedgh":
            hits = model(data.test.x.double()).argmax(1) == data.test.y
            scores.append(end.evaluation.accuracy)
            assert float(hits.double().mean()) == pytest.approx(end.evaluation.accuracy)
        with torch.no_grad():
            for parameter in model.parameters():  # it is a copy
                parameter.fill_(torch.nan)

    result = run(faulty(name), tmp_path / "a", progress=progress, data=data, model=federation.net(4))
    run(faulty(name), tmp_path / "plain", data=data, model=federation.net(4))
    same(tmp_path / "plain", tmp_path / "a")
    assert len({id(model) for model in models}) == len(result.history) == 5
    assert name == "fedgh" or len(scores) == 5


def test_a_sink_may_ask_for_the_model_while_it_is_told() -> None:
    ends: list[RoundEnd] = []
    last: list[nn.Module] = []

    class Asks(Sink):
        def round(self, end: RoundEnd) -> None:
            ends.append(end)
            last[:] = [end.model()]
            assert not last[0].training

    result = run(faulty("fedavg"), sinks=[Asks()], **given())
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(last[0].state_dict()[name], tensor)
    with pytest.raises(InputError, match=r"^RoundEnd\.model: round 1 is over; call model\(\) while"):
        ends[0].model()


def test_a_model_that_nobody_asks_for_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> nn.Module:
        raise AssertionError

    monkeypatch.setattr("fedkeel.api.global_model", never)
    seen: list[int] = []

    def one(end: RoundEnd) -> None:
        seen.append(end.round)

    def with_default(end: RoundEnd, loud: bool = False) -> None:
        assert not loud
        seen.append(end.round)

    for progress in (one, with_default, lambda *told: seen.append(len(told)), [].append):
        run(faulty("fedavg", rounds=1), progress=progress, **given())
    assert seen == [1, 1, 1]


def test_a_second_argument_with_a_default_is_the_model_if_it_is_called_so() -> None:
    seen: list[object] = []

    def progress(_: RoundEnd, model: object = None) -> None:
        seen.append(model)

    run(faulty("fedavg", rounds=1), progress=progress, **given())
    assert isinstance(seen[0], nn.Module)
