"""The worked examples, run as a user would, and the commands that they show."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import commands
from tests.helpers.repository import ROOT

EXAMPLES = ROOT / "examples"
NAMES = ["hospitals", "messages", "sensors"]
ROW = re.compile(r"^(\w+) +(?:\d+ +)?([\d.]+) +([\d.]+)$", re.MULTILINE)
"""A client, its result alone, and its result together with the others."""


def printed(name: str, place: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(Clients, what each reaches alone, what each reaches together)."""
    names, alone, together = zip(*ROW.findall(text), strict=True)
    return [*names], np.array(alone, float), np.array(together, float)


def command(name: str) -> list[str]:
    """The command in the docstring, word by word."""
    told = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")))
    assert told is not None
    shown = told[told.index("fedkeel run") :].replace("\\\n", " ")
    return shlex.split(shown)[1:]


def carried_out(name: str, place: Path) -> str:
    done = commands.fedkeel(*command(name), cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


def percent(text: str, what: str) -> float:
    return float(re.search(rf"^{what} +([\d.]+)%", text, re.MULTILINE)[1])  # type: ignore[index]


def test_they_are_short_and_all_are_tested() -> None:
    found = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert sorted(found) == NAMES
    assert all(lines < 60 for lines in found.values()), found


@pytest.mark.parametrize("name", NAMES)
def test_they_need_nothing_but_the_core(name: str) -> None:
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    packages = {(node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or "" for node in imports}
    assert {each.partition(".")[0] for each in packages} <= {"csv", "random", "numpy", "torch", "fedkeel"}


@pytest.mark.slow
def test_hospitals(tmp_path: Path) -> None:
    text = printed("hospitals", tmp_path)
    names, alone, together = table(text)
    assert names == ["Basel", "Bern", "Chur", "Genf", "Zug"]
    assert (together > 0.75).all()
    assert together.mean() > alone.mean() + 0.02
    assert together.min() > alone.min() + 0.02
    worst = names[int(together.argmin())]
    assert f"worst hospital is {worst}, with an AUROC of {together.min():.3f}" in text
    rows = (tmp_path / "hospitals.csv").read_text().splitlines()
    died = sum(row.endswith("yes") for row in rows) / (len(rows) - 1)
    assert 0.05 < died < 0.15  # imbalance
    assert sum(",," in row for row in rows) > 500  # missing values
    assert percent(carried_out("hospitals", tmp_path), "final auroc") > 75


@pytest.mark.slow
def test_sensors(tmp_path: Path) -> None:
    text = printed("sensors", tmp_path)
    names, alone, together = table(text)
    assert names == [*"ABCDEF"]
    assert (together < 6).all()  # degrees
    assert together.mean() < 0.9 * alone.mean()
    assert float(re.search(r"R2 ([\d.]+)", text)[1]) > 0.97  # type: ignore[index]
    assert re.search(r"^final rmse +0\.[2-5]", carried_out("sensors", tmp_path), re.MULTILINE)


@pytest.mark.slow
def test_messages(tmp_path: Path) -> None:
    text = printed("messages", tmp_path)
    names, alone, together = table(text)
    assert names == ["books", "toys", "tools", "phones", "shoes"]
    assert (together > 0.8).all()
    assert together.mean() > alone.mean() + 0.1
    assert len(re.findall(r"(?:delivery|refund|defect|praise) 0\.9\d", text)) == 4
    assert percent(carried_out("messages", tmp_path), "final f1") > 85
