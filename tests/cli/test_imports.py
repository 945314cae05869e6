"""What a command imports: PyTorch and matplotlib take longer than most commands."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "matplotlib", "PIL", "scipy", "ray")
STUDIES = ("compare", "sweep", "report", "export", "watch", "reproduce")
CODE = f"""
import sys
from fedkeel.cli import main
try:
    main()
finally:
    print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


def imported(*arguments: str, cwd: Path) -> list[str]:
    """The heavy modules that a command imports."""
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["", "new", "run", "data", "fleet", "deploy", "deploy local", "node run", "plot", "list", "show", *STUDIES],
)
def test_help_needs_nothing(command: str, tmp_path: Path) -> None:
    assert imported(*command.split(), "--help", cwd=tmp_path) == []


@pytest.mark.slow
def test_the_list_of_the_papers_needs_nothing(tmp_path: Path) -> None:
    assert imported("reproduce", "--list", cwd=tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["datasets", "partitions"])
def test_lists_of_what_has_no_tensors_need_nothing(what: str, tmp_path: Path) -> None:
    assert imported("list", what, cwd=tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list algorithms", "list models", "show"])
def test_rules_and_models_need_torch_alone(command: str, tmp_path: Path) -> None:
    assert imported(*command.split(), cwd=tmp_path) == ["torch"]


@pytest.mark.slow
def test_an_experiment_imports_its_own_method_alone(tmp_path: Path) -> None:
    code = (
        "import sys, fedkeel\nfrom fedkeel.methods import registry\n"
        "fedkeel.Experiment(algorithm='fedprox')\n"
        "print(*(name for name in registry._NAMES if f'fedkeel.methods.{name}' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["fedavg", "fedprox"]
