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
        ("taken", "taken.py exists already; accepted: another name"),
        ("tested", "test_tested.py exists already; accepted: another name"),
        ("dangling", "dangling.py exists already"),
        ("json", "there is a module of this name"),
        ("torch", "it is used inside the file"),
        ("numpy", "there is a module of this name"),
        ("fedkeel", "it is used inside the file"),
        ("__main__", "there is a module of this name"),
        ("__init__", "takes such a file for something else; accepted: another name"),
        ("conftest", "takes such a file for something else"),
        ("test_mine", "takes such a file for something else"),
        ("fedasmu", "it is a method of fedkeel"),
        ("class", "it is a word of Python"),
        ("list", "it is a word of Python"),
        ("Momentum", "it is used inside the file"),
        ("3d", "accepted: up to 50 letters, digits and underscores, not beginning with a digit"),
        ("a-b", "accepted: up to 50 letters"),
        ("a.b", "accepted: up to 50 letters"),
        ("../a", "accepted: up to 50 letters"),
        ("größe", "accepted: up to 50 letters"),
        ("a" * 51, "accepted: up to 50 letters"),
        ("", "accepted: up to 50 letters"),
        ("a\n", "accepted: up to 50 letters"),
    ],
)
def test_names_that_are_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "taken.py").write_text("x")
    (tmp_path / "test_tested.py").write_text("x")
    (tmp_path / "dangling.py").symlink_to("nowhere")
    before = sorted(os.listdir(tmp_path))
    done = commands.fedkeel("new", "method", name, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fedkeel: name: ")
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
    assert done.stderr == "fedkeel: name: not_here.py cannot be written (Permission denied)\n"
