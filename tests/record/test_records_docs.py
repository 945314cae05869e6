"""The examples of the documentation's section on records, run as a user would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.repository import ROOT


@pytest.mark.slow
def test_a_sink_and_a_follower_as_documented(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("## Records\n")[2]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(examples) == 3
    said = []
    for example in examples:
        (tmp_path / "example.py").write_text(example)
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert re.fullmatch(r"best [\d.]+%, final [\d.]+%\n", said[0])
    assert re.fullmatch(r"1 0\.\d+\n2 0\.\d+\n3 0\.\d+\n", said[1])
    round = r"(client \d+ was 0 versions behind\n){10}round \d: 10 arrived, 0 lost so far\naccuracy [\d.]+%\n"
    assert re.fullmatch(f"({round}){{3}}", said[2])
