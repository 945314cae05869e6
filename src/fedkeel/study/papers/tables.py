"""Lines written down: as records for programs, as Markdown for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedkeel.study.papers.catalogue import Citation, Item
from fedkeel.study.papers.lines import Line
from fedkeel.study.papers.quantities import QUANTITIES

HEADER = ("row", "method", "quantity", "paper", "ours", "seeds", "difference", "marks")


def notes(lines: Iterable[Line]) -> dict[str, str]:
    """Marks by what they mean: `a` to `z`, then `aa` and so on, in the order of the lines."""
    meanings = dict.fromkeys(note for line in lines for note in _notes(line))
    return {meaning: _letter(place) for place, meaning in enumerate(meanings)}


def marks(line: Line, letters: dict[str, str]) -> str:
    """The marks of a line."""
    return " ".join(letters[note] for note in _notes(line))


def difference(line: Line) -> str:
    """The difference with its sign."""
    if line.difference is None:
        return ""
    return ("+" if line.difference > 0 else "") + QUANTITIES[line.quantity].text(line.difference)


def cells(line: Line, letters: dict[str, str]) -> tuple[str, ...]:
    """A line under the header."""
    told = (line.row, line.column, line.quantity, line.paper, line.own, line.counted)
    return (*told, difference(line), marks(line, letters))


def heading(item: Item) -> str:
    """What an item is."""
    return f"{item.path}: {item.title}, {item.entry.caption}"


def remarks(item: Item) -> list[str]:
    """What the paper says about an item, and what it does not print."""
    found = [f"The paper says: {item.entry.claim}"] if item.entry.claim else []
    if item.cells and item.curves:
        found.append("The paper prints no numbers here.")
    elif item.entry.like:
        found.append(f"The paper prints no numbers here; they are those of {item.entry.like}, which has the same runs.")
    return found


def record(line: Line) -> dict[str, Any]:
    """A line as plain values; `low` and `high` are the 95 % interval over the `measured` ones of the seeds."""
    ours = line.ours
    mean, low, high, measured = (None, None, None, 0) if ours is None else (ours.mean, ours.low, ours.high, ours.count)
    return {
        "row": line.row,
        "method": line.column,
        "quantity": line.quantity,
        "paper": line.printed,
        "ours": mean,
        "low": low,
        "high": high,
        "seeds": line.seeds,
        "measured": measured,
        "difference": line.difference,
        "state": line.state,
        "scaled_down": "; ".join(line.smaller),
        "stand_in": line.stand_in,
        "differs_from_paper": "; ".join(line.differs),
    }


def as_markdown(item: Item, cite: Citation, lines: Sequence[Line], command: str) -> str:
    """A page: what it is, the table, what its marks mean, and the command that repeats it."""
    letters = notes(lines)
    page = [f"# {heading(item)}", f"{cite}.", *remarks(item)]
    page.append(
        "\n".join(["| " + " | ".join(HEADER) + " |", "|---|---|---|--:|--:|--:|--:|---|", *_rows(lines, letters)])
    )
    if letters:
        page.append("\n".join(f"- {letter}: {meaning}" for meaning, letter in letters.items()))
    page.append(f"`{command}`")
    return "\n\n".join(page) + "\n"


def _rows(lines: Sequence[Line], letters: dict[str, str]) -> list[str]:
    told = (cells(line, letters) for line in lines)
    return ["| " + " | ".join(each.replace("|", "\\|") for each in row) + " |" for row in told]


def _notes(line: Line) -> list[str]:
    found = [line.state] if line.ours and line.state else []
    found += [f"scaled down: {', '.join(line.smaller)}"] if line.smaller else []
    found += [f"stand-in: {line.stand_in}"] if line.stand_in else []
    return found + [f"differs from the paper: {each}" for each in line.differs]


def _letter(place: int) -> str:
    rest, last = divmod(place, 26)
    return (_letter(rest - 1) if rest else "") + chr(ord("a") + last)
