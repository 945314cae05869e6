"""The garbage collector of a command."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import commands


def alone(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Code in a process that has not imported PyTorch."""
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def test_no_collection_while_modules_are_imported(tmp_path: Path) -> None:
    code = (
        "import gc\nfrom fedkeel.cli.collector import importing\n"
        "with importing():\n    during = gc.isenabled()\n    made = [[] for _ in range(1000)]\n"
        "print(during, gc.isenabled(), gc.get_freeze_count() > 1000, any(o is made for o in gc.get_objects()))"
    )
    assert alone(code, tmp_path).stdout.split() == ["False", "True", "True", "False"]


def test_the_collector_is_on_again_after_an_import_that_fails(tmp_path: Path) -> None:
    code = (
        "import gc\nfrom fedkeel.cli.collector import importing\n"
        "try:\n    with importing():\n        import no_such_module\nexcept ImportError:\n    print(gc.isenabled())"
    )
    assert alone(code, tmp_path).stdout.split() == ["True"]


def test_who_has_imported_torch_before_keeps_its_collector(tmp_path: Path) -> None:
    before = gc.get_freeze_count()
    assert commands.fedkeel("show", cwd=tmp_path).returncode == 0
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, before)


@pytest.mark.slow
def test_what_a_users_module_leaves_open_is_flushed_when_the_command_ends(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import atexit\nfrom fedkeel import FederatedData\nlog = open('log.txt', 'w')\n"
        "atexit.register(lambda: open('exit.txt', 'w').write('told'))\n"
        "def data():\n    log.write('made')\n"
        "    return FederatedData.from_arrays([[0.0], [1.0]] * 50, [0, 1] * 50, clients=5)\n"
    )
    settings = ["dataset=mine:data", "model=linear", "clients=5", "per_round=2", "rounds=1", "executor=serial"]
    done = commands.in_a_process("run", *settings, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ((tmp_path / "log.txt").read_text(), (tmp_path / "exit.txt").read_text()) == ("made", "told")
