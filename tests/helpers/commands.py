"""The command line, in this process or in one of its own."""

import contextlib
import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedkeel.cli import main
from fedkeel.cli.console import console

QUICK = ["model=linear", "rounds=3", "clients=10", "per_round=5", "dataset.train_limit=500", "dataset.test_limit=200"]


def in_a_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it."""
    command = [sys.executable, "-c", "from fedkeel.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def fedkeel(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The same inside this process, which saves the start-up of torch."""
    printed, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        patch.chdir(cwd)
        patch.setattr(console, "quiet", False)  # whatever an earlier command has asked for
        patch.setattr(sys, "argv", ["fedkeel", *arguments])
        patch.setattr(sys, "path", sys.path.copy())
        patch.setattr(console, "_width", None)  # not the COLUMNS of the command that was the first in this process
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
    return subprocess.CompletedProcess(arguments, code, printed.getvalue(), errors.getvalue())


def interrupted(command: list[str], cwd: Path, ready: Path) -> tuple[int, str]:
    """(Exit code, errors) of a process that gets a Ctrl-C when there is something in the file `ready`."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )
    try:
        for _ in range(600):
            if ready.exists() and ready.stat().st_size:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, errors
