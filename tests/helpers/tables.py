"""A hospital's table as a dict of columns, and as a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

Table = dict[str, list[Any]]


def patients(rows: int = 120, seed: int = 0, missing: float = 0.2) -> Table:
    """Three hospitals whose patients differ; some ages are missing."""
    rng = np.random.default_rng(seed)
    hospitals = rng.choice(["Bern", "Genf", "Ulm"], rows)
    age = rng.normal(50, 10, rows) + 10 * (hospitals == "Ulm")
    return {
        "hospital": hospitals.tolist(),
        "age": [None if gap else float(f"{a:.2f}") for a, gap in zip(age, rng.random(rows) < missing, strict=True)],
        "sex": rng.choice(["f", "m"], rows).tolist(),
        "smoker": (rng.random(rows) < 0.3).tolist(),
        "pressure": rng.integers(90, 180, rows).tolist(),
        "outcome": rng.choice(["died", "left", "stayed"], rows).tolist(),
    }


def write_csv(path: Path, table: Table, delimiter: str = ",") -> Path:
    """Missing values are empty cells."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, delimiter=delimiter)
        lines.writerow(table)
        lines.writerows(zip(*(["" if v is None else v for v in column] for column in table.values()), strict=True))
    return path


def part(table: Table, rows: Any) -> Table:
    """These rows alone."""
    return {name: [column[row] for row in rows] for name, column in table.items()}
