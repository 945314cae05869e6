"""The script that counts lines of code."""

import subprocess
import sys
from pathlib import Path

from tests.helpers.repository import ROOT


def count(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "count_lines.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_only_code_is_counted(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "one.py").write_text('"""Words."""\n\nx = 1  # words\n')
    (tmp_path / "inside" / "two.py").write_text("# words\n\ny = [\n    1,\n]\n")
    assert count(str(tmp_path)).stdout.split() == ["(top", "level)", "1", "inside", "3", "all", "4"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    done = count(str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("nothing is not a folder; give a folder of Python files\n")
    helped = count("--help")
    assert helped.returncode == 0
    assert helped.stdout.startswith("usage: count_lines.py [-h] [folder]")
