"""Runs the papers' experiments again, as far as they are not run yet, and compares with the papers' figures."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkeel.runner.stopping import Stop
from fedkeel.study.engine import Begun, Watcher, execute
from fedkeel.study.export import as_csv, write
from fedkeel.study.outposts import Outposts
from fedkeel.study.papers import catalogue, tables
from fedkeel.study.papers.lines import FAILURES, Labels, Line, data_lines, lines
from fedkeel.study.papers.plan import ItemPlan, cases, fetched
from fedkeel.study.plan import Comparison, Measure, default_at
from fedkeel.study.store import Store
from fedkeel.study.tasks import Ended, Lost, Moved

ITEMS = "items"


@dataclass(frozen=True)
class Reproduced:
    """An item, and the paper's figures beside ours."""

    plan: ItemPlan
    lines: tuple[Line, ...]
    folder: Path
    """The folder of its files."""
    labels: tuple[Labels, ...] = ()
    """The labels of an item about data."""
    command: str = ""
    """The command that repeats it."""

    @property
    def failed(self) -> list[Line]:
        """Lines whose runs failed, or did not record what the line shows."""
        return [line for line in self.lines if line.state.startswith(FAILURES)]

    def comparison(self) -> Comparison | None:
        """Its runs as a comparison, with rows as scenes and columns as variants; None if there are no runs."""
        found = cases([self.plan])
        targets = {case.experiment.target_accuracy for case in found}
        names = [case.variant for case in found]
        measure = Measure(
            at=default_at(case.experiment for case in found),
            target=targets.pop() if len(targets) == 1 else None,
            reference=next((name for name in names if name.lower() == "fedavg"), None),
        )
        return Comparison(tables.heading(self.plan.item), found, measure, self.command) if found else None


def reproduce(
    plans: Sequence[ItemPlan],
    out: Path,
    *,
    jobs: int | None = None,
    watch: Watcher | None = None,
    stop: Stop | None = None,
    ray: Outposts | None = None,
    command: Callable[[ItemPlan], str] = lambda made: f"fedkeel reproduce {made.item.path} --scale {made.scale}",
) -> list[Reproduced]:
    """Run what the plans need and is not there yet; write a table for each item, and return them all.

    Runs are in `out/runs`, shared by all items; at the scale `tiny`, without their weights. `command` gives the command
    that repeats an item, which is written into its table and its page.
    """
    plans = fetched(plans)
    if runs := cases(plans):
        tiny = all(made.scale == "tiny" for made in plans)
        execute(
            runs,
            out,
            jobs=jobs,
            watch=_without_weights(out, watch) if tiny else watch,
            stop=stop,
            estimate=not tiny,
            ray=ray,
        )
    return list(written(plans, out, command))


def _without_weights(out: Path, watch: Watcher | None) -> Watcher:
    """Deletes the models of runs that ended: those of the smallest runs are of no use, and take gigabytes."""

    def take(event: Begun | Moved | Lost | Ended) -> None:
        if isinstance(event, Ended) and event.state == "finished":
            folder = Store(out).folder(event.name)
            shutil.rmtree(folder / "checkpoint", ignore_errors=True)
            for weights in folder.glob("*.safetensors"):
                weights.unlink()
        if watch is not None:
            watch(event)

    return take


def written(plans: Sequence[ItemPlan], out: Path, command: Callable[[ItemPlan], str]) -> Iterator[Reproduced]:
    """Each item's lines as its runs are now, and its files."""
    cites = {paper.name: paper.cite for paper in catalogue.papers()}
    for made in plans:
        folder = out / ITEMS / made.item.path.replace("/", "-")
        found, labels = data_lines(made) if made.of_data else (lines(made, out), [])
        write(folder / "table.csv", as_csv([{"scale": made.scale, **tables.record(line)} for line in found]))
        write(folder / "table.md", tables.as_markdown(made.item, cites[made.item.paper], found, command(made)))
        yield Reproduced(made, tuple(found), folder, tuple(labels), command(made))
