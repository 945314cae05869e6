"""`fedkeel compare`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.exits import fail
from fedkeel.cli.given import Given, Overrides, sorted_out
from fedkeel.cli.run import named
from fedkeel.errors import InputError, StoppedError, label, shown

if TYPE_CHECKING:
    from fedkeel.study.plan import Comparison
    from fedkeel.study.results import Results

app = typer.Typer()

Algorithms = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="The methods to compare. They replace the `algorithm` of the file."),
]
Seeds = Annotated[str | None, typer.Option(metavar="S,S,...", help="The seeds, such as 0,1,2 or 0-4.")]
Vary = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=V,V,...", help="Also compare under each of these values. It can be given several times."),
]
At = Annotated[
    Literal["time", "rounds", "uploads", "bytes"] | None,
    typer.Option(
        help="Compare runs at equal virtual time, rounds, uploads or bytes. The default is time if a method is "
        "asynchronous, and rounds otherwise."
    ),
]
Target = Annotated[
    float | None, typer.Option(help="A value of the metric. The table also shows what it took to reach it.")
]
Metric = Annotated[
    str | None,
    typer.Option(help="The metric by which runs are compared. The default is the first metric of the experiment."),
]
Reference = Annotated[
    str | None,
    typer.Option(help="The variant with which the others are compared. The default is fedavg, or the first one."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The folder of the results. The default is a folder in runs/, the same one for the same command."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="The number of runs at a time. The default is one per core, or per CPU of the Ray cluster.",
    ),
]


def _no_option(value: str | None) -> str | None:
    if value is not None and value.startswith("-"):
        raise InputError(f"--ray needs a value: local, auto or HOST:PORT; got {value}")
    return value


Ray = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|HOST:PORT",
        callback=_no_option,
        help="Spread the runs over a Ray cluster: one that is started on this machine, the one that it is part of, or "
        "the one with this address.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show which runs there would be, and how long they would take.")
]
Sinks = Annotated[
    list[str] | None, typer.Option("--sink", metavar="NAME", help="Also log to tensorboard, mlflow or wandb.")
]


@app.command(
    epilog="Examples:  fedkeel compare --algorithms fedavg,fedagg,fedasmu --seeds 0,1,2 fleet.speed_ratio=5  |  "
    "fedkeel compare my.yaml --algorithms fedavg,fedlga --vary fleet.rho=0.2,0.5 --dry-run  |  "
    "fedkeel compare experiments/studies/fedasmu.yaml --only 'FedASMU;FedAvg' --out runs/asmu"
)
def compare(
    given: Given = None,
    overrides: Overrides = None,
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    vary: Vary = None,
    only: Annotated[str | None, typer.Option(metavar="A;B;...", help="Run only these variants of the file.")] = None,
    at: At = None,
    target: Target = None,
    reference: Reference = None,
    metric: Metric = None,
    out: Out = None,
    jobs: Jobs = None,
    ray: Ray = None,
    dry_run: DryRun = False,
    sink: Sinks = None,
) -> None:
    """Compare methods over several seeds, on the same data and devices, in a table and a report.

    After an interruption, the same command continues and does not repeat finished runs.
    """
    with importing():
        from fedkeel.study.files import StudyFile, comparison

    file, settings = sorted_out(given, overrides)
    if file is not None and not file.suffix and not file.exists():
        raise InputError(
            f"{label(str(file))}: there is no such file; give a YAML file, and separate methods by commas "
            "(--algorithms fedavg,fedagg)"
        )
    read = StudyFile.read(file)
    if not (algorithms or vary or only or read.variants or read.scenes):
        raise InputError(
            "there is nothing to compare; add --algorithms A,B,... or --vary KEY=V,V,..., or give a file with variants"
        )
    plan = comparison(
        read,
        settings,
        words(algorithms, "algorithms"),
        numbers(seeds),
        vary or [],
        chosen(only, read.variants),
        at,
        target,
        reference,
        command(
            "compare",
            file,
            settings,
            algorithms=algorithms,
            seeds=seeds,
            vary=vary,
            only=only,
            at=at,
            target=target,
            reference=reference,
            metric=metric,
            out=out,
        ),
        metric,
    )
    place = out or Path("runs") / f"compare-{digest(plan)}"
    study(plan, place, jobs, ray, dry_run, sink or [])


def study(
    plan: Comparison, place: Path, jobs: int | None, ray: str | None, dry: bool, sinks: Sequence[str]
) -> Results | None:
    """Run a plan, write its table and its report, and print the table; nothing of that in a rehearsal."""
    with importing():
        from fedkeel.cli import display, studying
        from fedkeel.cli.outcome import conclude
        from fedkeel.runner.stopping import Stop
        from fedkeel.study.engine import execute
        from fedkeel.study.outposts import on_ray
        from fedkeel.study.results import collect
        from fedkeel.study.store import Store

    named(sinks)
    stop, store = Stop(), Store(place)
    try:
        with stop.on_signals(display.tell):
            store.check(plan)
            with on_ray(ray) as crew:
                if dry:
                    studying.rehearsed(execute(plan.cases, place, jobs=jobs, stop=stop, dry=True, ray=crew))
                    return None
                with studying.studying() as watch:
                    execute(
                        plan.cases,
                        place,
                        jobs=jobs,
                        watch=watch,
                        stop=stop,
                        sinks=sinks,
                        ready=lambda: store.keep(plan),
                        ray=crew,
                    )
            found = collect(plan, place)
            conclude(found, place)
    except StoppedError as error:
        fail(str(error), stop.code if stop.asked else error.exit_code)
    except KeyboardInterrupt:
        interrupted(stop.code)
    again = [run.name for run in found.outcomes if run.state == "failed" and not store.final(run.name)]
    if again:
        fail(f"{_many(len(again), 'run')} failed: {', '.join(again)}; run the same command to try again", 1)
    return found


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def interrupted(code: int) -> NoReturn:
    """End the process at once, as was asked for a second time."""
    fail("interrupted; run the same command to continue", code)


def words(text: str | None, option: str) -> list[str]:
    """What is between commas; nothing where the option is not given."""
    found = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not found:
        raise InputError(f"--{option} must be one or more names, separated by commas; got {shown(text)}")
    return found


def chosen(text: str | None, variants: Sequence[str] | dict[str, list[str]]) -> list[str]:
    """Names of variants, which may hold commas themselves: then semicolons separate them."""
    if text is None or text in variants:
        return [text] if text else []
    return [word.strip() for word in text.split(";" if ";" in text else ",") if word.strip()]


def numbers(text: str | None) -> list[int] | None:
    """`0,1,2` or `0-4`."""
    if text is None:
        return None
    found: list[int] = []
    for word in words(text, "seeds"):
        match = re.fullmatch(r"(\d{1,19})(?:-(\d{1,19}))?", word)
        if match is None:
            raise InputError(f"--seeds must be numbers such as 0,1,2 or 0-4; got {shown(word)}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + 1000:
            raise InputError(f"--seeds must be a range of at most 1000 numbers, such as 0-4; got {shown(word)}")
        found += range(first, last + 1)
    if len({*found}) < len(found):
        raise InputError(f"--seeds: a seed is given twice in {shown(text)}; give each seed once")
    return found


def digest(plan: Comparison) -> str:
    """A short name for a plan: the same for the same runs."""
    return short([(case.name, case.experiment.model_dump(mode="json")) for case in plan.cases])


def short(told: object) -> str:
    """A few letters for whatever can be written as JSON."""
    return sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()[:8]


def command(verb: str, file: Path | None, settings: Sequence[str], **options: object) -> str:
    """The command that repeats it."""
    told = ["fedkeel", verb, *([str(file)] if file else []), *settings]
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            told += [] if each is None else [f"--{name}", str(each)]
    return shlex.join(told)
