"""The text of docs/results.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence
import studies
import verdicts
from evidence import Evidence

from fedkeel.errors import InputError
from fedkeel.study.papers import catalogue
from fedkeel.study.papers.catalogue import Item, Paper
from fedkeel.study.papers.lines import Line
from fedkeel.study.papers.quantities import QUANTITIES, Name

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from wrap_docs import wrapped

NOT_A_RESULT = "not a result"
VERDICTS: tuple[verdicts.Word, ...] = ("holds", "in part", "does not hold", "not run")
READ: dict[str, Any] = {
    "accuracy": lambda row: row["accuracy"],
    "accuracy %": lambda row: 100 * row["accuracy"],
    "best accuracy %": lambda row: 100 * row["best_accuracy"],
    "rounds to target": lambda row: row["rounds_to_target"],
    "virtual seconds to target": lambda row: row["seconds_to_target"],
    "local accuracy %": lambda row: 100 * row["local_accuracy"]["mean"],
    "local spread": lambda row: 100 * row["local_accuracy"]["std"],
    "bound D": lambda row: row["report"]["gradient_bound"],
    "smoothness L": lambda row: row["report"]["smoothness"],
}
"""What an item shows, from a run of a study."""
Told = dict[tuple[str, ...], str]
"""By paper and study, and by scene, variant and quantity of that: where it stands, as it is told once of a paper."""


def page(stored: Mapping[str, Any]) -> str:
    """The whole page."""
    said = verdicts.read()
    found = {paper.name: evidence.of_paper(paper, stored, said) for paper in catalogue.papers()}
    wrong = [each for items in found.values() for made in items.values() for each in evidence.problems(made, said)]
    if wrong:
        raise InputError("verdicts.yaml does not fit the results:\n" + "\n".join(wrong))
    told: Told = {}
    blocks = ["# Which results of the papers hold", said.overall, _legend(), _counts(found)]
    for paper in catalogue.papers():
        blocks += _paper(paper, found[paper.name], said.papers[paper.name], told)
    return wrapped("\n\n".join(block for block in blocks if block))


def _legend() -> str:
    return (
        "## How to read this page\n\n"
        "- Each table cell has our number. The number of the paper follows in brackets, if it prints one.\n"
        "- ± is half of the 95 % interval over seeds. A single seed has no interval.\n"
        "- Studies list the time or rounds to a target for each seed. A - is a seed that did not reach the target.\n"
        "- If a setting is smaller than that of the paper, the text below the table says so.\n"
        "- Hours are estimates for two cores without a GPU, at the scales `small` and `full` of `fedkeel reproduce`.\n"
        "- The numbers come from [`fedkeel reproduce`](reproduce.md) (`benchmarks/results/papers.json`) and from the "
        "studies on the [pages of the methods](algorithms/). The verdicts are written by hand. "
        "`python benchmarks/papers.py page` writes this page."
    )


def _counts(found: Mapping[str, Mapping[str, Evidence]]) -> str:
    lines = [_row(["paper", "results", *VERDICTS]), "|---|" + "--:|" * (1 + len(VERDICTS))]
    for name, items in found.items():
        each = [made.word for made in items.values()]
        lines.append(_row([f"[{name}](#{name})", str(len(each)), *(str(each.count(word)) for word in VERDICTS)]))
    return "\n".join(lines)


def _paper(paper: Paper, found: Mapping[str, Evidence], said: verdicts.OfPaper, told: Told) -> Iterator[str]:
    yield f'<a id="{paper.name}"></a>\n\n## {paper.cite.title}'
    yield f"{paper.cite}. The method is described in [{said.page}]({said.page})."
    yield said.summary
    lines = [_row(["item", "what it shows", "what was run", "verdict"]), "|---|---|---|---|"]
    yield "\n".join([*lines, *(_summary(item, found.get(item.path)) for item in paper.items)])
    for item in paper.items:
        if item.path in found:
            yield from _item(found[item.path], told)
    yield from _settings(paper, found)
    if said.errata:
        yield "### Errors and gaps in the results of the paper"
        yield "\n".join(f"- {each}" for each in said.errata)


def _summary(item: Item, made: Evidence | None) -> str:
    if made is None:
        return _row([item.title, item.entry.caption, "", f"{NOT_A_RESULT}: {item.entry.why}"])
    link = f"[{item.title}](#{_anchor(item)})"
    return _row([link, item.entry.caption, _run(made), f"**{made.word}**" if made.found else made.word])


def _run(made: Evidence) -> str:
    """What was run of an item, in half a sentence."""
    count = len(made.item.rows)
    if not made.found:
        return "nothing"
    part = "all rows" if len(made.found) == count else f"{len(made.found)} of {count} rows"
    ways = [f"study {_link(name)}" for name in dict.fromkeys(made.by_study.values())]
    sizes = {bool(kept["scaled_down"]) for kept in made.runs.values()}
    ways += [
        words for smaller, words in ((False, "the paper's setting"), (True, "a smaller setting")) if smaller in sizes
    ]
    return f"{part}: {', '.join(ways)}"


def _item(made: Evidence, told: Told) -> Iterator[str]:
    item, verdict = made.item, made.verdict
    yield f'<a id="{_anchor(item)}"></a>\n\n### {item.title}: {item.entry.caption}'
    there = f"[{made.root.title}](#{_anchor(made.root)})"
    shared = (
        ""
        if item is made.root
        else f"{item.title} uses the runs of {there}. See there for numbers and for rows that were not run."
    )
    yield " ".join(each for each in (f"**{made.word.capitalize()}.**", verdict.text, shared) if each)
    if item.entry.claim:
        yield f"The paper says: {item.entry.claim}"
    if item is made.root:
        for study in verdict.studies:
            yield from _study(item, study, told)
    own = item.entry.also if item is not made.root else item.shows
    rows = [row for row in item.rows if row in made.runs]
    for quantity in own:
        if text := _table(made, rows, quantity):
            yield text
    if rows and own:
        yield from _marks(made, rows)
    if item is made.root:
        yield _not_run(made)


def _table(made: Evidence, rows: Sequence[str], quantity: Name) -> str:
    """Rows by methods, or the other way round: the longer side goes down."""
    columns = list(dict.fromkeys(cell.column for cell in made.item.cells))
    found = {(row, column): made.line(row, column, quantity) for row in rows for column in columns}
    if not any(found.values()):
        return ""
    down, across = (rows, columns) if len(rows) >= len(columns) else (columns, rows)
    lines = [_row([quantity, *across]), "|---|" + "--:|" * len(across)]
    for first in down:
        pairs = [(first, other) if down is rows else (other, first) for other in across]
        lines.append(_row([first, *(_figure(found[pair]) for pair in pairs)]))
    return "\n".join(lines)


def _figure(line: Line | None) -> str:
    """Ours, and the paper's in brackets."""
    if line is None:
        return ""
    some = f", {line.counted} seeds" if line.ours is not None and " of " in line.counted else ""
    return f"{line.own}{some}{_printed(line.printed)}"


def _printed(printed: catalogue.Printed) -> str:
    if printed in ("not printed", "none"):
        return ""
    return f" ({printed.replace('-', ' ') if isinstance(printed, str) else f'{printed:,.10g}'})"


def _marks(made: Evidence, rows: Sequence[str]) -> Iterator[str]:
    """What was scaled down, and what is said of the item's settings."""
    marks = []
    for text in dict.fromkeys(made.runs[row]["scaled_down"] for row in rows):
        if text:
            inside = [row for row in rows if made.runs[row]["scaled_down"] == text]
            marks.append(f"Scaled down ({'all rows' if inside == made.item.rows else _named(inside)}): {text}.")
    if not made.item.of_data:
        marks += [f"Differs from the paper: {text}." for text in made.item.entry.differs]
    if marks:
        yield "\n".join(f"- {each}" for each in marks)


def _settings(paper: Paper, found: Mapping[str, Evidence]) -> Iterator[str]:
    """Where the settings of what was run differ from the paper's, and whose."""
    run = [made for made in found.values() if not made.item.of_data]
    used = {part for made in run for cell in made.item.cells if cell.row in made.runs for part in cell.parts}
    whose: dict[str, list[str]] = {}
    for part, text in paper.differs.items():
        if part in used:
            whose.setdefault(text, []).append(part)
    if whose:
        yield "### Where the settings of `fedkeel reproduce` differ from the paper"
        yield "\n".join(f"- {', '.join(parts)}: {text}." for text, parts in whose.items())


def _study(item: Item, study: verdicts.Covering, told: Told) -> Iterator[str]:
    """A study's headline figures beside those of the paper, and where the rest stands."""
    rows, here = studies.results(study.name), f"[{item.title}](#{_anchor(item)})"
    shown = [name for name in item.shows if name in READ and _readable(rows[0], name)]
    heads = [(scene, name) for scene in study.scenes for name in shown]
    titles = [
        ", ".join(word for word in (scene or study.scenes[scene], name if len(shown) > 1 else "") if word)
        for scene, name in heads
    ]
    lines = [_row([shown[0] if len(shown) == 1 else "", *titles]), "|---|" + "--:|" * len(heads)]
    above: dict[str, None] = {}
    for variant in study.variants or dict.fromkeys(row["variant"] for row in rows):
        keys = [(item.paper, study.name, scene, variant, name) for scene, name in heads]
        if all(key in told for key in keys):
            above |= {told[key]: None for key in keys}
            continue
        told |= dict.fromkeys(keys, here)
        cells = []
        for scene, name in heads:
            runs = [row for row in rows if (row["scene"], row["variant"]) == (scene, variant)]
            figure = _paper_figure(item, study.scenes[scene], variant, name) if study.same_task else "none"
            cells.append(_measured(runs, name) + _printed(figure))
        lines.append(_row([variant, *cells]))
    words = [f"Study {_link(study.name)}, `fedkeel compare experiments/studies/{study.name}.yaml`:"]
    words.append(f"{studies.read(study.name).about}.")
    first = told.setdefault((item.paper, study.name), here)
    if first != here:
        words = [f"Study {_link(study.name)}, as in {first}."]
    if study.differs and told.setdefault((item.paper, study.name, study.differs), here) == here:
        words.append(f"In this study, {study.differs}.")
    if above:
        words.append(f"See {', '.join(above)} for the other numbers.")
    yield " ".join(words)
    if len(lines) > 2:
        yield "\n".join(lines)


def _readable(row: Mapping[str, Any], quantity: Name) -> bool:
    try:
        READ[quantity](row)
    except KeyError:
        return False
    return True


def _measured(runs: Sequence[Mapping[str, Any]], quantity: Name) -> str:
    """A variant's figure in a scene, as the studies' own tables have it: seed by seed where there is a target."""
    if not runs:
        return ""
    if not studies.whole(runs):
        return "stopped"
    values = [READ[quantity](run) for run in runs]
    kind = QUANTITIES[quantity]
    if kind.of_target:
        return ", ".join("-" if value is None else f"{value:.0f}" for value in values)
    return studies.cell(values, factor=1, digits=kind.digits)


def _paper_figure(item: Item, row: str, variant: str, quantity: Name) -> catalogue.Printed:
    """What the paper prints for a study's variant, where it has that method."""
    name = variant.lower().replace("-", "")
    for cell in item.cells:
        if cell.row == row and name in (cell.column, cell.column.rpartition(", ")[2]):
            return cell.printed[item.shows.index(quantity)]
    return "none"


def _not_run(made: Evidence) -> str:
    """Rows without a result, by their reasons."""
    lines = []
    for reason in dict.fromkeys(made.reasons.values()):
        rows = [row for row in made.item.rows if made.reasons.get(row) == reason]
        small, full = (sum(evidence.hours(made.item, row, scale) for row in rows) for scale in ("small", "full"))
        time = f" This would take about {_spelled(small)} at `small` and {_spelled(full)} at `full`." if full else ""
        lines.append(f"- Not run ({reason}): {_named(rows)}.{time}")
    return "\n".join(lines)


def _spelled(hours: float) -> str:
    if hours < 1:
        return f"{max(2, 60 * hours):.0f} minutes"
    return f"{hours:.1f} hours" if hours < 10 else f"{hours:,.0f} hours"


def _named(rows: Sequence[str]) -> str:
    """Rows; those with the same first part together."""
    found: dict[str, list[str]] = {}
    for row in rows:
        first, _, rest = row.partition(", ")
        found.setdefault(first, []).append(rest)
    return "; ".join(first + (f" ({'; '.join(rest)})" if any(rest) else "") for first, rest in found.items())


def _link(study: str) -> str:
    """A study's name, with a link to the page that has its table."""
    found = studies.shown_on(study)
    return f"[{study}](algorithms/{found[0].name})" if found else study


def _anchor(item: Item) -> str:
    return item.path.replace("/", "-")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
