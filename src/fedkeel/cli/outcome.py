"""What a comparison came to, as a person sees it at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from fedkeel.cli.console import console
from fedkeel.report.figures import figures
from fedkeel.report.page.html import page
from fedkeel.study.export import as_csv, caption, cells, write
from fedkeel.study.results import Results
from fedkeel.study.table import by_scene, columns, run_columns, verdict

REPORT, TABLE, RUNS = "report.html", "table.csv", "runs.csv"
WIDEST = 1000
"""Characters of a line."""


def conclude(results: Results, place: Path) -> None:
    """Print the table, then write it, the report and the figures."""
    show(results)
    write_all(results, place)
    console.print(f"table   {place / TABLE}\nreport  {place / REPORT}", soft_wrap=True, markup=False)


def write_all(results: Results, place: Path) -> None:
    """The table, the runs, the report and the figures."""
    write(place / TABLE, as_csv(columns(results)))
    write(place / RUNS, as_csv(run_columns(results)))
    write(place / REPORT, page(results))
    figures(results, place / "figures")


def _print(header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """A table whose cells are never broken; the last columns are left out where a terminal is too narrow."""
    for count in range(len(header), 1, -1):
        table = Table(box=None, pad_edge=False, title=escape(title) or None, title_justify="left")
        for name in header[:count]:
            table.add_column(escape(name), justify="right" if name else "left", no_wrap=True)
        for variant, *row in rows:
            table.add_row(escape(variant), *row[: count - 1])
        width = console.measure(table, options=console.options.update(width=WIDEST)).maximum
        if width <= console.width or not console.is_terminal or count == 2:
            table.width = width
            console.print(table, crop=False, soft_wrap=True)
            left_out = ", ".join(header[count:])
            if left_out:
                console.print(f"(too wide for this terminal: {left_out})", soft_wrap=True, markup=False)
            return


def show(results: Results) -> None:
    """The table of each scene, a sentence for each variant, and how to read them."""
    for note in results.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    for scene, found in by_scene(results).items():
        header, rows = cells(results, found, lambda text: f"[bold]{text}[/] *", "·", brief=True)
        _print(header, rows, scene)
        for line in found:
            if line.sentence and len(results.variants) > 1:
                console.print(f"{line.variant}: {line.sentence}", soft_wrap=True, markup=False)
        if why := verdict(results, scene):
            console.print(why, soft_wrap=True, markup=False)
    console.print(caption(results, "*"), soft_wrap=True, markup=False)
