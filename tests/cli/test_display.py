"""What a person sees while a run goes on."""

from pathlib import Path

from rich.progress import Progress

from fedkeel import Experiment
from fedkeel.cli.display import Bar
from fedkeel.record.rows import Arrivals, Evaluation, RoundEnd
from fedkeel.runner.sinks import Start


def evaluation(round: int, accuracy: float) -> Evaluation:
    return Evaluation(
        round=round, version=1, virtual_seconds=1, wall_seconds=1, metrics={"accuracy": accuracy}, loss=0.5, bytes_up=1,
        bytes_down=1, updates=1,
    )  # fmt: skip


def shown(progress: Progress) -> tuple[float, str]:
    (task,) = progress.tasks
    return task.completed, task.fields["score"]


def test_the_bar_of_a_resumed_run_begins_where_the_run_goes_on() -> None:
    progress = Progress(disable=True)
    bar = Bar(progress, 10)
    assert shown(progress) == (0, "")
    bar.begin(Start(Experiment(), Path("a"), 4, [evaluation(2, 0.1), evaluation(4, 0.25)]))
    assert shown(progress) == (4, "accuracy 25.00%  loss 0.500")
    bar.round(RoundEnd(5, 1.0, 1.0, None, Arrivals(), [], [], {}, None))
    assert shown(progress) == (5, "accuracy 25.00%  loss 0.500")
    bar.round(RoundEnd(6, 1.0, 1.0, None, Arrivals(), [], [], {}, evaluation(6, 0.5)))
    assert shown(progress) == (6, "accuracy 50.00%  loss 0.500")
