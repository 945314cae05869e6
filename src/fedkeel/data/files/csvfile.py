"""CSV files, gzipped or not: a line of names, then one line per row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fedkeel.data.files.table import Table, parse
from fedkeel.data.readers.content import read_content
from fedkeel.errors import InputError, label, shown, words

DELIMITERS = (",", ";", "\t", "|")
Cells = dict[str, list[str]]


def read(paths: Sequence[Path], missing: frozenset[str] = frozenset()) -> tuple[Table, list[int]]:
    """One table of all files, and how many rows each of them has; types are those that fit all files."""
    parts = [_cells(path) for path in paths]
    first = parts[0]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        if part.keys() != first.keys():
            apart = sorted(part.keys() ^ first.keys())
            raise InputError(
                f"{label(str(path))} and {label(str(paths[0]))} have different columns ({', '.join(apart[:5])}); "
                "give all files the same columns"
            )
    columns = {name: parse(name, [cell for part in parts for cell in part[name]], missing) for name in first}
    source = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return Table(columns, source), [len(next(iter(part.values()))) for part in parts]


def _cells(path: Path) -> Cells:
    """The cells of a file, column by column."""
    text, where = _decoded(path), label(str(path))
    header, _, _ = text.partition("\n")
    delimiter = max(DELIMITERS, key=header.count)
    try:
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        names = [name.strip() for name in next(lines, [])]
        _check_names(names, where)
        rows = []
        for line in lines:
            if len(line) == len(names):
                rows.append(line)
            elif line:  # an empty line says nothing
                raise InputError(
                    f"{where}, line {lines.line_num}: there must be {len(names)} values, one per column; "
                    f"got {len(line)}"
                )
    except csv.Error as error:
        raise InputError(f"{where} is not a CSV file ({words(error)}, line {lines.line_num}); correct it") from error
    if not rows:
        raise InputError(f"{where} has no rows below its names of columns; add at least one")
    return {name: list(cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)}


def _decoded(path: Path) -> str:
    try:
        return read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{label(str(path))} must be UTF-8 text ({words(error)}); save it as UTF-8") from error


def _check_names(names: list[str], where: str) -> None:
    if not names:
        raise InputError(f"{where} is empty; write the names of its columns in the first line")
    for name in names:
        if not name:
            raise InputError(
                f"{where}: column {names.index(name) + 1} has no name; name it in the first line, or remove the column"
            )
        if names.count(name) > 1:
            raise InputError(f"{where}: {names.count(name)} columns have the name {shown(name)}; rename one of them")
    if all(_is_number(name) for name in names):
        raise InputError(
            f"{where}: the first line must hold the names of the columns; got the numbers {', '.join(names[:3])}"
        )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
