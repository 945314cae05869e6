"""`fedkeel new method`: files that work as they are, and names that would not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import commands


@pytest.mark.slow
def test_from_nothing_to_a_run(tmp_path: Path) -> None:
    made = commands.in_a_process("new", "method", "mine", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py", "test_mine.py"]
    steps = [line.strip() for line in made.stdout.splitlines() if line.startswith("  ")]
    assert steps == ["python -m pytest test_mine.py", "fedkeel run --set algorithm=mine:mine"]
    tested = subprocess.run(
        [sys.executable, *steps[0].split()[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout
    done = commands.in_a_process(*steps[1].split()[1:], *commands.QUICK, "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "o" / "summary.json").read_text())["algorithm"] == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("self.mu *", "0.9 * self.mu *"),
        ("self.beta *", "0.9 * self.beta *"),
        ("updates.shares()", "updates.shares('uniform')"),
    ],
)
def test_its_test_sees_a_wrong_formula(before: str, after: str, tmp_path: Path) -> None:
    assert commands.fedkeel("new", "method", "falsified", cwd=tmp_path).returncode == 0
    path = tmp_path / "falsified.py"
    assert path.read_text().count(before) >= 1
    *code, last = path.read_text().rpartition(before)
    path.write_text("".join([*code[:-1], after, last]))
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_falsified.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert tested.returncode == 1, tested.stdout
    assert "Not equal to tolerance" in tested.stdout


def test_every_name_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    assert commands.fedkeel("new", "method", "other_one", cwd=tmp_path).returncode == 0
    text = (tmp_path / "other_one.py").read_text()
    assert 'other_one = method("other_one", client=Proximal, server=Momentum' in text
    assert '"name": "other_one:other_one"' in (tmp_path / "test_other_one.py").read_text()
    assert "mine" not in text + (tmp_path / "test_other_one.py").read_text()
    lines = [line.strip() for line in text.splitlines()]
    assert len([line for line in lines if line and not line.startswith(("#", '"""'))]) < 40


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("taken", "name: 'taken' cannot be used, as taken.py already exists; choose another name"),
        ("tested", "name: 'tested' cannot be used, as test_tested.py already exists; choose another name"),
        ("dangling", "name: 'dangling' cannot be used, as dangling.py already exists; choose another name"),
        ("json", "is already the name of a module; choose another name"),
        ("torch", "is already used inside the file; choose another name"),
        ("numpy", "is already the name of a module; choose another name"),
        ("fedkeel", "is already used inside the file; choose another name"),
        ("__main__", "is already the name of a module; choose another name"),
        ("__init__", "name: '__init__' means something else to Python or pytest; choose another name"),
        ("conftest", "means something else to Python or pytest"),
        ("test_mine", "means something else to Python or pytest"),
        ("fedasmu", "name: 'fedasmu' is already the name of a method of fedkeel; choose another name"),
        ("class", "is a word of Python; choose another name"),
        ("list", "is a word of Python; choose another name"),
        ("Momentum", "is already used inside the file; choose another name"),
        ("3d", "name must be 1 to 50 letters, digits and underscores, not starting with a digit; got '3d'"),
        ("a-b", "name must be 1 to 50 letters"),
        ("a.b", "name must be 1 to 50 letters"),
        ("../a", "name must be 1 to 50 letters"),
        ("größe", "name must be 1 to 50 letters"),
        ("a" * 51, "name must be 1 to 50 letters"),
        ("", "name must be 1 to 50 letters"),
        ("a\n", "name must be 1 to 50 letters"),
    ],
)
def test_names_that_are_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "taken.py").write_text("x")
    (tmp_path / "test_tested.py").write_text("x")
    (tmp_path / "dangling.py").symlink_to("nowhere")
    before = sorted(os.listdir(tmp_path))
    done = commands.fedkeel("new", "method", name, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fedkeel: name")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "taken.py").read_text() == "x"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "mine")
    done = commands.fedkeel("new", "method", "not_here", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "fedkeel: not_here.py cannot be written (Permission denied)\n"
