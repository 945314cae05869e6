"""docs/results.md: all tables and figures of the papers, from what `fedkeel reproduce` and the studies came to.

fedkeel reproduce fedagg-journal --scale small --out DIR   # runs items; what is finished is not run again
python benchmarks/papers.py publish DIR                    # their finished rows into benchmarks/results/papers.json
python benchmarks/papers.py page                           # docs/results.md from that, the studies and verdicts.yaml
python benchmarks/papers.py check                          # exits with 1 if the page is not what `page` writes

Stored is what was measured: an item, a row, a scale; rows of a figure that shows the runs of a table are stored with
that table. What is published again is replaced, and everything else stays. The papers' own figures, and where a setting
differs from theirs, are those of the catalogue (fedkeel.study.papers).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import results_page

from fedkeel.errors import FedkeelError, InputError, label, unknown
from fedkeel.study.papers import catalogue
from fedkeel.study.papers.catalogue import Item
from fedkeel.study.papers.lines import FAILED, NOT_REACHED
from fedkeel.study.reproduce import ITEMS

HERE = Path(__file__).parent
STORED, PAGE = HERE / "results" / "papers.json", HERE.parent / "docs" / "results.md"
SLOW = "left out: "
"""How the state of a row begins that would not fit into the hours of a small item."""
Stored = dict[str, dict[str, dict[str, Any]]]
"""By item, row and scale."""


def read() -> Stored:
    """What is stored."""
    found: Stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    return found


def publish(folder: Path) -> list[str]:
    """Store the finished rows of a folder; what was not taken over is told, in a sentence each."""
    known = {item.path.replace("/", "-"): item for paper in catalogue.papers() for item in paper.items if item.cells}
    tables = sorted((folder / ITEMS).glob("*/table.csv"))
    if not tables:
        raise InputError(f"folder {label(str(folder))} has no {ITEMS}/*/table.csv; give a folder of fedkeel reproduce")
    stored, told = read(), []
    for table in tables:
        name = table.parent.name
        if name not in known:
            raise unknown(f"item in {label(str(folder))}", name, known)
        item = known[name]
        told += merge(stored.setdefault(root(item), {}), item, lines(table, item))
    STORED.write_text(
        json.dumps({path: rows for path, rows in stored.items() if rows}, indent=1, sort_keys=True) + "\n"
    )
    return told


def root(item: Item) -> str:
    """The item whose runs it shows: itself, if it has its own."""
    return f"{item.paper}/{item.entry.like or item.name}"


def lines(table: Path, item: Item) -> Sequence[Mapping[str, str]]:
    """Those of a table, all of which must be figures of the item."""
    with table.open(newline="") as file:
        found = list(csv.DictReader(file))
    cells = {(cell.row, cell.column) for cell in item.cells}
    for line in found:
        if "measured" not in line or "scale" not in line:
            raise InputError(f"{table}: it has no column scale or measured; first: run fedkeel reproduce again")
        if line["scale"] == "tiny":
            raise InputError(f"{table}: the accuracies of the scale tiny mean nothing; publish small or full")
        if (line["row"], line["method"]) not in cells or line["quantity"] not in item.shows:
            words = ", ".join((line["row"], line["method"], line["quantity"]))
            raise InputError(f"{table}: {item.path} has no {label(words)}; first: run fedkeel reproduce again")
    return found


def merge(rows: dict[str, Any], item: Item, found: Sequence[Mapping[str, str]]) -> list[str]:
    """Put lines into the stored rows of an item; what was not taken over is told."""
    told = []
    for (row, scale), each in groupby(found, lambda line: (line["row"], line["scale"])):
        group = list(each)
        why = next((line["state"] for line in group if not finished(line)), None)
        kept = rows.setdefault(row, {})
        if why is None:
            kept[scale] = together(kept.get(scale, {}), taken(group))
        elif why.startswith(SLOW) and "methods" not in kept.get(scale, {}):
            kept[scale] = {"left_out": why}
        else:
            told.append(f"{item.path}, {row}: {why}")
        if not kept:
            del rows[row]
    return told


def finished(line: Mapping[str, str]) -> bool:
    """Whether a line has its figure, or cannot have one."""
    if line["paper"] == "none" or line["ours"]:
        return True
    return line["state"] == NOT_REACHED or line["state"].startswith(FAILED)


def taken(group: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """A finished row as it is stored."""
    methods: dict[str, Any] = {}
    smaller = set()
    for line in group:
        if line["paper"] != "none":
            smaller.add(line["scaled_down"])
            figure = {key: float(line[key]) if line[key] else None for key in ("ours", "low", "high")}
            counts = {key: int(line[key]) for key in ("seeds", "measured")}
            methods.setdefault(line["method"], {})[line["quantity"]] = {**figure, **counts, "state": line["state"]}
    return {"scaled_down": "; ".join(sorted(smaller - {""})), "methods": methods}


def together(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New figures, and old ones of the same setting that are not among them."""
    if old.get("scaled_down") != new["scaled_down"]:
        return new
    methods = {name: {**old["methods"].get(name, {}), **figures} for name, figures in new["methods"].items()}
    return {**new, "methods": {**old["methods"], **methods}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    parts.add_parser("publish").add_argument("folder", metavar="DIR", type=Path, help="made by fedkeel reproduce")
    parts.add_parser("page")
    parts.add_parser("check")
    given = parser.parse_args()
    try:
        if given.what == "publish":
            for sentence in publish(given.folder):
                print(f"not taken over: {sentence}", file=sys.stderr)
            return
        text = results_page.page(read())
    except FedkeelError as error:
        raise SystemExit(str(error)) from None
    if given.what == "page":
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        raise SystemExit(f"{PAGE} is out of date; first: papers.py page")


if __name__ == "__main__":
    main()
