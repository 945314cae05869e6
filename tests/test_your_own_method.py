"""docs/your-own-method.md: its files written and its commands carried out, in an empty folder, in their order."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers import commands
from tests.helpers.repository import ROOT

PAGE = (ROOT / "docs" / "your-own-method.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is there after all of it."""
    place = tmp_path_factory.mktemp("page")
    for kind, text in BLOCKS:
        if kind == "python":
            name = re.match(r"# (\w+\.py)(, continued)?\n", text)
            assert name is not None, text
            assert (place / name[1]).exists() == bool(name[2]), text
            with (place / name[1]).open("a") as file:
                file.write(text)
        else:
            assert kind == "bash", text
            for line in text.replace("\\\n", " ").splitlines():
                done = carried_out(shlex.split(line, comments=True), place)
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
                with (place / "printed").open("a") as file:
                    file.write(done.stdout)
    return place


def carried_out(words: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """A command of the page; those of fedkeel in this process, which has loaded torch."""
    if words[0] == "fedkeel":
        for path in place.glob("*.py"):  # it may have grown since it was imported
            sys.modules.pop(path.stem, None)
        return commands.fedkeel(*words[1:], cwd=place)
    assert words[0] == "python"
    command = [sys.executable, *words[1:]]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600, check=False)


def test_it_holds_code_of_both_kinds() -> None:
    assert [kind for kind, _ in BLOCKS].count("python") >= 5
    assert [kind for kind, _ in BLOCKS].count("bash") >= 6


@pytest.mark.slow
def test_everything_on_it_works(folder: Path) -> None:
    """One test, so that only one process goes through the page."""
    the_tests_pass_and_the_methods_run(folder)
    the_runs_are_compared(folder)
    partition_and_sampling_are_recorded(folder)


def the_tests_pass_and_the_methods_run(folder: Path) -> None:
    printed = (folder / "printed").read_text()
    assert printed.count("1 passed") == 2
    for name in ("mine", "Near+fedavg", "Near+fedadam", "steady", "eager"):
        assert f"{name} on fashion-mnist-mini with linear" in printed
    assert "  mu: 0.1\n  beta: 0.5\n" in printed


def the_runs_are_compared(folder: Path) -> None:
    for name in ("fedavg", "steady", "eager"):
        assert json.loads((folder / "runs" / name / "summary.json").read_text())["algorithm"] == name
    recorded = yaml.safe_load((folder / "runs" / "steady" / "experiment.yaml").read_text())["algorithm"]
    assert recorded == {"name": "steady:steady", "client": None, "server": None, "mu": 0.1, "beta": 0.5}
    for figure in ("compare.png", "staleness.png"):
        assert (folder / figure).read_bytes().startswith(b"\x89PNG")


def partition_and_sampling_are_recorded(folder: Path) -> None:
    described = [yaml.safe_load(path.read_text()) for path in (folder / "runs").glob("*/experiment.yaml")]
    (own,) = (each for each in described if each["sampling"] == "deals:largest_first")
    assert own["partition"] == {"kind": "deals:by_label", "noise": 0.3}


def test_the_readme_links_it() -> None:
    assert "docs/your-own-method.md" in (ROOT / "README.md").read_text(encoding="utf-8")
