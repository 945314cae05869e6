"""What a person sees while a run goes on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedkeel import Experiment
from fedkeel.cli import console as console_module
from fedkeel.cli import progress as module
from fedkeel.cli.progress import Lines, Pace, Screen, packed, progress, spell
from fedkeel.record.rows import Arrivals, Evaluation, RoundEnd
from fedkeel.runner.sinks import Start
from fedkeel.runner.steps import announce

HOUR = 3600.0


class Clock:
    """Real time, as the display sees it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A log; a test may make it a terminal."""
    made = Console(file=io.StringIO(), width=60, highlight=False)
    for place in (module, console_module):
        monkeypatch.setattr(place, "console", made)
    return made


def terminal(console: Console, width: int = 60) -> None:
    console._force_terminal = True
    console._width = width
    console._environ = {"TERM": "xterm"}


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def evaluation(round: int, accuracy: float) -> Evaluation:
    return Evaluation(
        round=round, version=1, virtual_seconds=HOUR * round, wall_seconds=1, metrics={"accuracy": accuracy}, loss=0.5,
        bytes_up=1, bytes_down=1, updates=1,
    )  # fmt: skip


def end(round: int, accuracy: float | None = None) -> RoundEnd:
    tested = None if accuracy is None else evaluation(round, accuracy)
    return RoundEnd(round, HOUR * round, 1.0, 0.25, Arrivals(), [], [], {}, tested)


def start(round: int = 0, *history: Evaluation) -> Start:
    return Start(Experiment(), Path("a"), round, history)


def board(screen: Screen, console: Console, width: int) -> list[str]:
    """The lines as a terminal of that width shows them."""
    console._width = width
    return ["".join(part.text for part in line).rstrip() for line in console.render_lines(screen)]


def test_the_display_of_a_resumed_run_begins_where_the_run_goes_on(clock: Clock, console: Console) -> None:
    screen = Screen(Pace(Experiment(rounds=10)))
    screen.begin(start(4, evaluation(2, 0.1), evaluation(4, 0.25)))
    bar, numbers = board(screen, console, 60)
    assert bar.startswith("round 4/10 ")
    assert bar.endswith(" 40%")
    assert numbers == "accuracy 25.00%  loss 0.500  elapsed 0 s  virtual 4 h"
    screen.round(end(5))
    assert board(screen, console, 60)[1] == "accuracy 25.00%  loss 0.500  elapsed 0 s  virtual 5 h"
    clock.now += 60
    screen.round(end(6, 0.5))
    assert board(screen, console, 100)[1] == (
        "accuracy 50.00%  loss 0.500  elapsed 1 min  remaining about 2 min  virtual 6 h"
    )
    screen.__exit__()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_longer_than_the_terminal_and_no_number_leaves_its_label(
    clock: Clock, console: Console, width: int
) -> None:
    screen = Screen(Pace(Experiment(rounds=3000)))
    screen.begin(start())
    clock.now += 100_000
    screen.round(end(1234, 0.9321))
    screen.step("testing the clients")
    lines = board(screen, console, width)
    assert max(map(len, lines)) <= width
    said = {
        "accuracy 93.21%", "loss 0.500", "elapsed 1 d 4 h", "remaining about 1 d 16 h", "virtual 51 d 10 h",
        "now testing the clients",
    }  # fmt: skip
    assert {words for line in lines[1:] for words in line.split("  ")} == said
    screen.__exit__()


def test_the_virtual_clock_may_end_a_run_first(clock: Clock) -> None:
    pace = Pace(Experiment(rounds=1000, limit_seconds=10 * HOUR))
    pace.begin(start())
    clock.now += 30
    pace.take(end(5))
    assert pace.share == 0.5
    assert pace.times == ["elapsed 30 s", "remaining about 30 s", "virtual 5 h"]
    pace.take(end(12))
    assert (pace.share, pace.times) == (1.0, ["elapsed 30 s", "virtual 12 h"])


def test_a_log_gets_about_ten_lines_with_labelled_times(clock: Clock, console: Console) -> None:
    lines = Lines(Pace(Experiment(rounds=100)))
    lines.begin(start())
    for round in range(1, 101):
        clock.now += 6
        lines.round(end(round, round / 100))
    said = printed(console).splitlines()
    assert len(said) == 10
    assert said[0] == (
        "round 10/100  accuracy 10.00%  loss 0.500  train loss 0.250  "
        "elapsed 1 min  remaining about 9 min  virtual 10 h"
    )
    assert said[-1].startswith("round 100/100  accuracy 100.00%")


def test_large_losses_and_single_rounds_are_written_briefly(console: Console) -> None:
    huge = replace(evaluation(1, 0.5), metrics={"rmse": 51941.4}, loss=2698067627.0)
    with progress(Experiment(rounds=1)) as sink:
        sink.begin(start())
        sink.round(RoundEnd(1, 0.0, 1.0, 0.00012, Arrivals(), [], [], {}, huge))
    head, line = printed(console).splitlines()
    assert head.endswith(", 1 round")
    assert line.startswith("round 1/1  rmse 51941  loss 2.698e+09  train loss 0.00012  ")


def test_on_a_terminal_a_spinner_names_the_steps_before_the_bar(console: Console) -> None:
    terminal(console)
    with progress(Experiment(rounds=2)) as sink:
        for step in ("loading the data", "choosing an executor"):
            announce(step)
            assert isinstance(sink, Screen)
            assert sink._status is not None
            assert sink._status.status == step
        sink.begin(start())
        assert sink._status is None
        sink.round(end(2, 0.5))
    assert "fedavg on fashion-mnist-mini" in printed(console)
    assert "round 2/2" in printed(console)
    assert "accuracy 50.00%" in printed(console)


def test_in_a_log_nothing_moves(console: Console) -> None:
    with progress(Experiment(rounds=2)) as sink:
        announce("loading the data")
        sink.begin(start())
        sink.round(end(1, 0.25))
    assert printed(console).count("\n") == 2
    assert "\x1b" not in printed(console)
    assert "loading" not in printed(console)


def test_quiet_is_silent_on_a_terminal_too(console: Console) -> None:
    terminal(console)
    console.quiet = True
    with progress(Experiment(rounds=2)) as sink:
        announce("loading the data")
        sink.begin(start())
        sink.round(end(1, 0.25))
    assert printed(console) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.25, "0.25 s"), (12.4, "12 s"), (59.7, "1 min"), (200, "3 min 20 s"), (600, "10 min"),
        (3599.9, "1 h"), (4320, "1 h 12 min"), (86_399, "1 d"), (183_600, "2 d 3 h"),
    ],
)  # fmt: skip
def test_times_are_spelled_with_their_units(seconds: float, words: str) -> None:
    assert spell(seconds) == words


def test_words_are_packed_into_few_lines() -> None:
    assert packed(["aa", "bb", "cc"], 6) == ["aa  bb", "cc"]
    assert packed(["too long", "b"], 3) == ["too long", "b"]
    assert packed([], 3) == []
