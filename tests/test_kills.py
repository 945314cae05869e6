"""Runs that are killed and resumed come out as if nothing had happened: real processes, real SIGKILLs."""

import subprocess
import sys

from tests.helpers.repository import ROOT

SCRIPT = ROOT / "scripts" / "kills.py"
KILLS = 35


def test_killed_runs_come_out_as_if_they_had_not_been() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--kills", str(KILLS)], capture_output=True, text=True, check=False)
    assert f"{KILLS} of {KILLS} runs came out as if they had not been killed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
