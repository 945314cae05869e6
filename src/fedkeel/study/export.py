"""Tables of a comparison as files: CSV, Parquet, LaTeX, Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from fedkeel.errors import InputError
from fedkeel.record.durable import whole
from fedkeel.record.measured import Measured, decimals
from fedkeel.study.places import words as place_on
from fedkeel.study.results import Results
from fedkeel.study.statistics import Difference, Interval
from fedkeel.study.table import Line, by_scene, columns, evaluations, lines, run_columns

What = Literal["table", "runs", "history"]
Format = Literal["csv", "parquet", "latex", "markdown"]
SUFFIXES: dict[str, Format] = {".csv": "csv", ".parquet": "parquet", ".tex": "latex", ".md": "markdown"}
ROWS: dict[What, Callable[[Results], list[dict[str, Any]]]] = {
    "table": columns,
    "runs": run_columns,
    "history": evaluations,
}
MOST_PLACES = 6
"""The most scenes whose places a caption names one by one."""
_LATEX = str.maketrans(
    {**{letter: f"\\{letter}" for letter in "&%$#_{}"}, "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"\\": r"\textbackslash{}"}
)


def export(results: Results, path: Path, what: What = "table", form: Format | None = None) -> Path:
    """Write a file in the format that is asked for, or that its name ends in."""
    form = form or SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise InputError(
            f"out: {path.name} does not end in the name of a format; use {', '.join(SUFFIXES)}, or give --format"
        )
    if form == "parquet":
        _parquet(ROWS[what](results), path)
    else:
        write(path, told(results, what, form))
    return path


def told(results: Results, what: What, form: Format) -> str:
    """The content of a file of text."""
    if form == "csv":
        return as_csv(ROWS[what](results))
    if what != "table":
        raise InputError(f"format must be csv or parquet for {what}; got {form}")
    return latex(results) if form == "latex" else markdown(results)


def write(path: Path, text: str) -> None:
    """A whole file, or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            partial.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"out: {path} cannot be written ({error.strerror}); choose another file") from None


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """One line per row; numbers with all their digits, nothing where there is no value."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "format: parquet needs the package pyarrow; install it with pip install 'fedkeel[parquet]', or choose csv"
        ) from None
    names = list(dict.fromkeys(name for row in rows for name in row))
    types = {"seed": pyarrow.uint64()}  # the largest do not fit into the type that would be guessed
    table = pyarrow.table({name: pyarrow.array([row.get(name) for row in rows], types.get(name)) for name in names})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            pyarrow.parquet.write_table(table, partial)
    except OSError as error:
        raise InputError(f"out: {path} cannot be written ({error.strerror}); choose another file") from None


def markdown(results: Results) -> str:
    """A table per scene; the best variant is bold, and those that may be best are marked by a dot."""
    parts = []
    for scene, found in by_scene(results).items():
        header, rows = cells(results, found, lambda text: f"**{text}**", "·")
        told = [f"**{_plain(scene)}**\n"] if scene else []
        told += ["| " + " | ".join(map(_plain, header)) + " |", "|---|" + "--:|" * (len(header) - 1)]
        told += ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in rows]
        parts.append("\n".join(told))
    return "\n\n".join([*parts, " ".join([caption(results), *map(_sentence, results.notes)])]) + "\n"


def latex(results: Results) -> str:
    """The same as tabulars for the package booktabs."""
    parts = []
    for scene, found in by_scene(results).items():
        header, rows = cells(results, found, lambda text: f"\x01{text}\x02", "\x03")
        told = [rf"% {scene}".translate({10: " "})] if scene else []
        told += [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule"]
        told += [" & ".join(map(_escaped, header)) + r" \\", r"\midrule"]
        told += [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
        told += [r"\bottomrule", r"\end{tabular}"]
        parts.append("\n".join(told))
    told = [caption(results), *map(_sentence, results.notes)]
    return "\n\n".join(parts) + "".join(f"\n% {line}" for line in told) + "\n"


def _escaped(text: str) -> str:
    marks = {"\x01": r"\textbf{", "\x02": "}", "\x03": r"$\cdot$", "±": r"$\pm$", "−": "$-$"}
    text = text.translate(_LATEX)
    for mark, told in marks.items():
        text = text.replace(mark, told)
    return text


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _plain(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def cells(
    results: Results, found: Sequence[Line], bold: Callable[[str], str], level: str, brief: bool = False
) -> tuple[list[str], list[list[str]]]:
    """(Header, rows) of a scene's lines as words, without columns that are empty. A brief table fits a terminal."""
    measure, metric = results.measure, results.metric
    goal = f"to {_goal(measure.target, metric)}" if measure.target is not None else ""
    unit = metric.percent
    of_clients = f"clients{' (estimated)' if any(run.estimated for run in results.outcomes) else ''}{unit}"
    tested = "test " if results.on_validation else ""
    kinds: dict[str, Callable[[Line], str]] = {
        f"validation {metric.words}{unit}": lambda line: amount(line.validation, metric),
        f"{tested}{metric.words}{unit}": lambda line: amount(line.value, metric),
        f"against {measure.reference}": lambda line: apart(line.difference, metric, brief),
        f"rounds {goal}": lambda line: _to_target(line, line.rounds_to_target),
        f"virtual seconds {goal}": lambda line: _to_target(line, line.seconds_to_target),
        f"MB {goal}": lambda line: _to_target(line, line.bytes_to_target, 1e-6),
        of_clients: lambda line: amount(line.clients, metric),
        f"worst tenth{unit}": lambda line: amount(line.worst_decile, metric),
        "runs": lambda line: _runs(line) if any(map(_is_short, found)) else "",
    }
    if brief:
        del kinds[of_clients], kinds[f"worst tenth{unit}"], kinds[f"rounds {goal}"]
    kinds = {name: tell for name, tell in kinds.items() if (goal or not name.endswith(" ")) and any(map(tell, found))}
    rows = []
    for line in found:
        row = [line.variant, *(tell(line) for tell in kinds.values())]
        if line.standing == "best":
            row[1] = bold(row[1])
        elif line.standing == "level":
            row[1] = f"{row[1]} {level}"
        rows.append(row)
    return ["", *kinds], rows


def _is_short(line: Line) -> bool:
    """Whether a variant has runs that are not finished."""
    return bool(line.failed or line.pruned or line.pending)


def _runs(line: Line) -> str:
    """`4 of 5, 1 failed`."""
    counts = {"failed": line.failed, "stopped early": line.pruned, "to come": line.pending}
    whole = line.finished + sum(counts.values())
    return ", ".join([f"{line.finished} of {whole}", *(f"{count} {what}" for what, count in counts.items() if count)])


def amount(found: Interval | None, metric: Measured) -> str:
    """`81.23 ± 0.45`; shares in percent."""
    if found is None:
        return ""
    digits = 2 if metric.share else decimals(found.mean, found.half)
    half = "" if found.half is None else f" ± {metric.scale * found.half:.{digits}f}"
    return f"{metric.scale * found.mean:.{digits}f}{half}"


def apart(found: Difference | None, metric: Measured, brief: bool = False) -> str:
    """`+1.20 (+0.40 to +2.00)`, or briefly `+1.20`; shares in points."""
    if found is None:
        return ""
    sure = found.low is not None and found.high is not None
    half = (found.high - found.low) / 2 if found.low is not None and found.high is not None else None
    digits = 2 if metric.share else decimals(found.mean, half)
    told = [f"{metric.scale * each:+.{digits}f}" for each in (found.mean, found.low, found.high) if each is not None]
    return told[0] if brief or not sure else f"{told[0]} ({told[1]} to {told[2]})"


def _goal(target: float, metric: Measured) -> str:
    return f"{100 * target:.4g}%" if metric.share else f"{target:.4g}"


def _to_target(line: Line, found: Interval | None, factor: float = 1.0) -> str:
    if found is None:
        return "not reached" if line.finished else ""
    some = f" ({line.reached} of {line.finished})" if line.reached < line.finished else ""
    return f"{factor * found.mean:,.4g}{some}" if factor * found.mean < 1e4 else f"{factor * found.mean:,.0f}{some}"


def _places(results: Results) -> str:
    """Where the runs of each scene are compared."""
    what = {"time": "virtual time"}.get(results.measure.at, results.measure.at)
    if len(results.limits) > MOST_PLACES:
        return f"at equal {what} in each scene"
    places = (
        f"{place_on(limit, results.measure.at)} in {scene}"
        for scene, limit in results.limits.items()
        if isfinite(limit)
    )
    return f"at equal {what} in each scene ({', '.join(places)})"


def _chosen(results: Results) -> str:
    """By what settings are chosen, in a sentence."""
    if results.on_validation:
        return f"Settings are chosen by {results.judged_by}."
    return f"Settings are chosen by {results.judged_by}, as there is no validation set."


def caption(results: Results, best: str = "Bold") -> str:
    """Where runs are compared, over which seeds, and what the marks mean that there are; `best` marks the best."""
    measure = results.measure
    seeds = ", ".join(map(str, results.seeds))
    where = {limit for limit in results.limits.values() if isfinite(limit)}
    place = f"at {place_on(where.pop(), measure.at)}" if len(where) == 1 else _places(results)
    if results.stopped == {*results.limits}:
        place = "at the end of each run"
    fewer = any(run.state == "finished" and run.kept < measure.last for run in results.outcomes)
    all_of = ", or of all where there are fewer" if fewer else ""
    last = f" (mean of the last {measure.last} evaluations{all_of})" if measure.last > 1 else ""
    told = [f"Test {results.metric.words} {place}{last}, seed{'s' if len(results.seeds) > 1 else ''} {seeds}."]
    if results.metric.better == "lower":
        told.append("Lower is better.")
    if measure.tuning:
        told.append(_chosen(results))
    if measure.target is not None and any(run.record and run.record.validated for run in results.outcomes):
        told.append("Targets are looked at on the validation set.")
    if len(results.seeds) == 1:
        return " ".join([*told, "Differences may be noise."])
    told.append("± and ranges: 95 % intervals over seeds, not corrected for the number of comparisons.")
    standings = {line.standing for line in lines(results)}
    if "best" in standings:
        told.append(f"{best}: clearly better than all others, corrected for their number.")
    if "level" in standings:
        told.append("A dot: may be best, as its difference to the best mean may be noise.")
    return " ".join(told)
