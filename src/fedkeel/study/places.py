"""Places on the scales on which runs are compared."""

from __future__ import annotations

from typing import Any

from fedkeel.study.plan import At

UNITS: dict[At, str] = {"time": "virtual seconds", "rounds": "rounds", "uploads": "uploads", "bytes": "bytes"}


def scale(row: dict[str, Any], at: At) -> float:
    """The place of an evaluation on a scale."""
    match at:
        case "time":
            return float(row["virtual_seconds"])
        case "rounds":
            return float(row["round"])
        case "uploads":
            return float(row["updates"])
        case "bytes":
            return float(row["bytes_up"] + row["bytes_down"])


def words(place: float, at: At) -> str:
    """A place in words: '1 round', '600 virtual seconds', '2.85 MB'."""
    if at == "bytes":
        return f"{place / 1e6:,.4g} MB"
    unit = UNITS[at]
    return f"{place:,.6g} {unit.removesuffix('s') if place == 1 else unit}"
