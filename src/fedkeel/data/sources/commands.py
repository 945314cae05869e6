"""Runs the package managers' own clients."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fedkeel.data.sources import progress
from fedkeel.data.sources.source import SourceError

TIMEOUT_SECONDS = 1800.0
_ERROR = re.compile(r"^E:|\berror\b", re.IGNORECASE)


def run(command: Sequence[str], folder: Path, timeout: float = TIMEOUT_SECONDS) -> None:
    """Runs a command inside `folder`; failure and time-out become a SourceError with its own words."""
    client = command[0]
    if shutil.which(client) is None:
        raise SourceError(f"{client} is not installed")
    progress.tell(" ".join(command[:3]), 0, None)
    code, errors = _communicate(command, folder, timeout)
    if code != 0:
        raise SourceError(f"{client} failed with exit code {code}: {_reason(errors)}")


def _reason(errors: str) -> str:
    """The first line that calls itself an error (npm ends with advice), else the last."""
    lines = errors.strip().splitlines() or ["no message"]
    return next((line for line in lines if _ERROR.search(line)), lines[-1])


def _communicate(command: Sequence[str], folder: Path, timeout: float) -> tuple[int, str]:
    """Exit code and standard error. The process group dies with the call, whatever ends the call."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise SourceError(f"{command[0]} did not finish within {timeout:g} seconds") from None
        except BaseException:
            _kill(process)
            raise
    return process.returncode, errors


def _kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
