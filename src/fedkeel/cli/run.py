"""`fedkeel run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.exits import fail, notes
from fedkeel.cli.given import Given, Overrides, described
from fedkeel.errors import InputError, StoppedError

if TYPE_CHECKING:
    from fedkeel.config.experiment import Experiment
    from fedkeel.runner.sinks import Sink
    from fedkeel.runner.stopping import Stop

app = typer.Typer()


@app.command(
    epilog="Examples:  fedkeel run  |  fedkeel run my.yaml --set seed=1  |  "
    "fedkeel run --set dataset=mnist model=linear clients=100 participation=0.2 --out runs/first  |  "
    "fedkeel run --resume runs/first  |  fedkeel run --resume runs/first --set rounds=300"
)
def run(
    given: Given = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Default: a new folder in runs/.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Continue the run in this folder from its last checkpoint. With an experiment: starts it if the "
            "folder holds no run; otherwise it must be the same, but for settings that say when the run ends: "
            "--set rounds=300 extends a finished run.",
        ),
    ] = None,
    sink: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also log to tensorboard, mlflow or wandb.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")] = False,
) -> None:
    """Run an experiment: train, show the progress, and write a run folder.

    Ctrl-C and SIGTERM stop the run within seconds and save a checkpoint. A resumed run repeats the last round.

    Exit code 75: limit_wall_seconds is used up; resume the run.
    """
    from fedkeel.cli.console import console, waiting

    console.quiet = quiet
    with waiting("loading PyTorch"), importing():
        from fedkeel import api
        from fedkeel.cli import display
        from fedkeel.cli.downloads import shown_downloads
        from fedkeel.record.folder import begun
        from fedkeel.record.runs import RunRecord
        from fedkeel.report.curves import learning_curves
        from fedkeel.runner.stopping import Stop

    if out is not None and resume is not None:
        raise InputError(
            f"--out: {out} cannot be combined with --resume, which names the folder already; remove one of them"
        )
    says = resume is None or bool(given or overrides)
    experiment = described(given, overrides) if says else None
    sinks = named(sink)
    stop = Stop()
    try:
        with stop.on_signals(display.tell), shown_downloads(bars=False):
            if resume is not None and (begun(resume) or experiment is None):
                folder = _resume(resume, experiment, sinks, stop)
            else:
                assert experiment is not None
                with display.progress(experiment) as progress:
                    result = api.run(experiment, resume or out, below="runs", sinks=[progress, *sinks], stop=stop)
                assert result.out is not None
                folder = result.out
            figures = [folder / "learning_curve.png", folder / "learning_curve.svg"]
            learning_curves([RunRecord.read(folder)], figures)
            display.summary(folder, figures[0])
    except StoppedError as error:
        fail(str(error), stop.code if stop.asked else error.exit_code)
    except KeyboardInterrupt as error:
        fail("; ".join(["interrupted", *notes(error)]), stop.code)


def named(words: Sequence[str] | None) -> list[Sink]:
    """The sinks that a command names."""
    from fedkeel import sinks

    return [sinks.named(word) for word in words or ()]


def _resume(folder: Path, given: Experiment | None, sinks: Sequence[Sink], stop: Stop) -> Path:
    """Continue the run in a folder, unless it is complete; `given` may change when it ends, and nothing else."""
    from fedkeel import api
    from fedkeel.cli import display
    from fedkeel.config.experiment import Experiment, contradiction
    from fedkeel.record import schema
    from fedkeel.record.ends import CHANGEABLE
    from fedkeel.record.folder import begun, complete
    from fedkeel.runner import extend

    if not begun(folder):
        raise InputError(
            f"--resume: {folder} holds no run; name a folder that fedkeel run has made, or give an experiment to start "
            "there"
        )
    schema.check(folder)
    stored = Experiment.load(folder / schema.EXPERIMENT)
    said = {} if given is None else given.model_dump(exclude_unset=True)
    reason = contradiction(stored.model_dump(), said, aside=CHANGEABLE)
    if reason:
        raise InputError(
            f"--resume: the run in {folder} was started with {reason}; give the same settings, or start a new run in "
            f"another folder (only these may change: {', '.join(CHANGEABLE)})"
        )
    changes = {name: value for name, value in said.items() if name in CHANGEABLE}
    if complete(folder) and extend.changed(folder, stored, changes) is None:
        display.tell(f"the run in {folder} is complete: nothing is left to do")
    else:
        with display.progress(extend.changed(folder, stored, changes) or stored) as progress:
            api.resume(folder, sinks=[progress, *sinks], stop=stop, tell=display.tell, **changes)
    return folder
