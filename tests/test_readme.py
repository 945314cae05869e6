"""The README's Python example, run as a user would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.repository import ROOT


@pytest.mark.slow
def test_the_python_example_runs_and_learns(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(re.search(r"accuracy ([\d.]+)%", done.stdout).group(1))  # type: ignore[union-attr]
    assert accuracy > 85
    assert (tmp_path / "model.pt").exists()


def test_the_commands_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "check", "test", "figures", "install", "native", "sanitize", "test-extras"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {"make lint", "make test", "make test-extras"} <= {*script}
