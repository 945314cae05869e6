"""How a command ends: one clear sentence for an error, and an exit code that means something."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from fedkeel.cli import stdio
from fedkeel.errors import FedkeelError, did_you_mean, nearest, words


def guarded(command: click.Command, arguments: Sequence[str], debug: bool) -> None:
    """Carry out a command; with `debug`, an error shows its traceback."""
    stdio.prepare()
    try:
        with command.make_context("fedkeel", [*arguments]) as context:
            command.invoke(context)
        stdio.flush()
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # so do rich and Typer end where nobody reads their help
            sys.exit(0)
        raise
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted", 130)
    except click.ClickException as error:
        _refuse_usage(error)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError) and stdio.reader_gone():
            stdio.settle()
            sys.exit(0)
        told = _foreseen(error) if isinstance(error, FedkeelError) else "; ".join([_unforeseen(error), *_advice(error)])
        fail(told, getattr(error, "exit_code", 1))


def notes(error: BaseException) -> list[str]:
    """What was added to an error on its way, such as how to resume the run."""
    return [*getattr(error, "__notes__", [])]


def _advice(error: BaseException) -> list[str]:
    """The notes that say what to do."""
    from fedkeel.config import usercode

    return [note for note in notes(error) if not note.startswith(usercode.DOING)]


def fail(message: str, code: int) -> NoReturn:
    """End the process with a sentence and a code."""
    with suppress(OSError):
        print(f"fedkeel: {message}", file=sys.stderr or sys.stdout)
    stdio.settle()
    sys.exit(code)


def _refuse_usage(error: click.ClickException) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context else ""
    fail(_told(error) + where, error.exit_code)


def _told(error: click.ClickException) -> str:
    """What Click says, in the words of other errors."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = [name for each in error.ctx.command.params for name in each.opts if name.startswith("--")]
        word = error.option_name.lstrip("-").replace("-", "_")
        near = did_you_mean(nearest(error.option_name, known, 0.7))
        settings = f"settings are given as --set {word}=..." if "--set" in known else f"choose from {', '.join(known)}"
        return f"there is no option {error.option_name}; {near or settings}"
    told = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if told.startswith("No such command") and context is not None and isinstance(context.command, click.Group):
        names = context.command.list_commands(context)
        word = told.partition("'")[2].partition("'")[0]
        choice = did_you_mean(nearest(word, names, 0.6)) or f"choose from {', '.join(names)}"
        return f"there is no command {word}; {choice}"
    return told


def _foreseen(error: FedkeelError) -> str:
    from fedkeel.config import usercode

    return f"{error}{usercode.hint(error)}"


def _unforeseen(error: Exception) -> str:
    from fedkeel.config import usercode

    said = words(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in said:
        return "there is not enough memory; a smaller model, smaller batches or fewer clients need less"
    if isinstance(error, OSError):
        return f"{said} (run again with --debug to see where)"
    return usercode.unforeseen(error)
