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
    str | None, typer.Option(metavar="A,B,...", help="Methods to compare; they replace the file's `algorithm`.")
]
Seeds = Annotated[str | None, typer.Option(metavar="S,S,...", help="Seeds: 0,1,2 or 0-4.")]
Vary = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=V,V,...", help="Compare under each of these values, too; may be given several times."),
]
At = Annotated[
    Literal["time", "rounds", "uploads", "bytes"] | None,
    typer.Option(
        help="Compare runs at equal virtual time, rounds, uploads or bytes. Default: time, if a method is "
        "asynchronous; otherwise rounds."
    ),
]
Target = Annotated[
    float | None, typer.Option(help="A value of the metric: also tell what it took to get there.")
]
Metric = Annotated[
    str | None,
    typer.Option(help="The metric by which runs are compared. Default: the first one of the experiment."),
]
Reference = Annotated[
    str | None, typer.Option(help="The variant that others are compared with. Default: fedavg, or the first.")
]
Out = Annotated[Path | None, typer.Option(help="The folder. Default: one in runs/, the same for the same command.")]
Jobs = Annotated[int | None, typer.Option(min=1, max=1024, help="Runs at a time. Default: one per core.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell which runs there would be, and what they take.")]
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
    only: Annotated[str | None, typer.Option(metavar="A;B;...", help="Some of the file's variants.")] = None,
    at: At = None,
    target: Target = None,
    reference: Reference = None,
    metric: Metric = None,
    out: Out = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    sink: Sinks = None,
) -> None:
    """Run methods over seeds on the same data and devices, and compare them: a table and a report.

    The same command goes on after an interruption, and does not repeat what is finished.
    """
    with importing():
        from fedkeel.study.files import StudyFile, comparison

    file, settings = sorted_out(given, overrides)
    if file is not None and not file.suffix and not file.exists():
        raise InputError(
            f"{label(str(file))}: there is no such file; accepted: an experiment or a comparison in YAML (commas "
            "separate methods: --algorithms fedavg,fedagg)"
        )
    read = StudyFile.read(file)
    if not (algorithms or vary or only or read.variants or read.scenes):
        raise InputError(
            "algorithms: there is nothing to compare; accepted: --algorithms A,B,..., --vary KEY=V,V,..., or a file "
            "with variants"
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
    study(plan, place, jobs, dry_run, sink or [])


def study(plan: Comparison, place: Path, jobs: int | None, dry: bool, sinks: Sequence[str]) -> Results | None:
    """Run a plan, write its table and its report, and print the table; nothing of that in a rehearsal."""
    with importing():
        from fedkeel.cli import display, studying
        from fedkeel.cli.outcome import conclude
        from fedkeel.runner.stopping import Stop
        from fedkeel.study.engine import execute
        from fedkeel.study.results import collect
        from fedkeel.study.store import Store

    named(sinks)
    stop, store = Stop(), Store(place)
    try:
        with stop.on_signals(display.tell):
            if dry:
                store.check(plan)
                studying.rehearsed(execute(plan.cases, place, jobs=jobs, stop=stop, dry=True))
                return None
            store.check(plan)
            with studying.studying() as watch:
                execute(
                    plan.cases, place, jobs=jobs, watch=watch, stop=stop, sinks=sinks, ready=lambda: store.keep(plan)
                )
            found = collect(plan, place)
            conclude(found, place)
    except StoppedError as error:
        fail(str(error), stop.code)
    except KeyboardInterrupt:
        interrupted(stop.code)
    again = [run.name for run in found.outcomes if run.state == "failed" and not store.final(run.name)]
    if again:
        fail(f"failed: {', '.join(again)}; the same command tries again", 1)
    return found


def interrupted(code: int) -> NoReturn:
    """End the process at once, as was asked for a second time."""
    fail("interrupted; the same command goes on with what is left", code)


def words(text: str | None, option: str) -> list[str]:
    """What stands between commas; nothing where the option is not given."""
    found = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not found:
        raise InputError(f"{option}: {shown(text)} is not accepted; accepted: one or more, with commas between them")
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
            raise InputError(f"seeds: {shown(word)} is not accepted; accepted: numbers such as 0,1,2 or 0-4")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + 1000:
            raise InputError(f"seeds: {shown(word)} is not accepted; accepted: a range such as 0-4")
        found += range(first, last + 1)
    if len({*found}) < len(found):
        raise InputError(f"seeds: {shown(text)}: one is given twice; accepted: each once")
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
