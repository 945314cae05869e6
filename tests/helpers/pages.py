"""Pages of the documentation: their code run and their commands carried out, in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import typer

from fedkeel import cli
from tests.helpers import commands

Blocks = list[tuple[str, str]]
"""(Language, text) of each block of code."""


def blocks(page: str) -> Blocks:
    """The blocks of code of a page, in their order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def carried_out(page: Blocks, place: Path, run: Callable[[str], bool] = lambda _: True) -> str:
    """What the code and the commands print: first all code, as one script, as far as `run` says so; then the commands.

    A `print` with a comment behind it says what it prints; that is checked.
    """
    code = [text for kind, text in page if kind == "python" and run(text)]
    (place / "page.py").write_text("\n".join(code))
    done = subprocess.run([sys.executable, "page.py"], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = iter(done.stdout.splitlines())
    for line in filter(None, map(_promised, "\n".join(code).splitlines())):
        assert line in lines, f"{line}\n{done.stdout}"  # in their order
    printed = [done.stdout]
    for line in "".join(text for kind, text in page if kind == "bash").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "fedkeel"
        ran = commands.fedkeel(*arguments, cwd=place)
        assert ran.returncode == 0, f"{line}\n{ran.stderr}"
        printed.append(ran.stdout)
    return "\n".join(printed)


def _promised(line: str) -> str:
    """What a line of code says that it prints."""
    return line.partition("  # ")[2] if line.startswith("print(") else ""


def parsed(words: list[str]) -> str:
    """The name of the command that these words call; raises UsageError for options that it does not have."""
    command: click.Command = typer.main.get_command(cli.app)
    context = click.Context(command, info_name="fedkeel")
    name: list[str] = []
    while isinstance(command, click.Group):
        found, command_, words = command.resolve_command(context, words)
        assert found is not None
        assert command_ is not None
        name, command = [*name, found], command_
        context = click.Context(command, context, info_name=found)
    command.make_context(name[-1], [*words], parent=context.parent)
    return " ".join(name)
