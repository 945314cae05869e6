"""`fedkeel new`."""

from __future__ import annotations

import builtins
import keyword
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedkeel.config.files import reason
from fedkeel.errors import InputError, shown

app = typer.Typer(help="Write files that you can start from.", no_args_is_help=True)

_TEMPLATES = Path(__file__).parent / "templates"
_NAME = "mine"
"""What the templates call the method."""
_FILES = {"{}.py": "a client rule, a server rule and the method", "test_{}.py": "a test of both rules"}


@app.callback()
def _group() -> None:  # without it, Typer would take the only command for the group itself
    pass


@app.command("method", epilog="Example:  fedkeel new method mine")
def new_method(name: Annotated[str, typer.Argument(help="The name of the method and of its file.")]) -> None:
    """Write your own method, NAME.py, and a test of it, test_NAME.py, into this folder, ready to be changed."""
    texts = {file.format(_NAME): (_TEMPLATES / file.format(_NAME)).read_text(encoding="utf-8") for file in _FILES}
    _check(name, texts[f"{_NAME}.py"])
    for old, text in texts.items():
        _write(Path(_renamed(old, name)), _renamed(text, name))
    for file, about in _FILES.items():
        typer.echo(f"{file.format(name):{len(name) + 10}}{about}")
    typer.echo("\nTest it and run it:")
    typer.echo(f"  python -m pytest test_{name}.py")
    typer.echo(f"  fedkeel run --set algorithm={name}:{name}")


def _check(name: str, text: str) -> None:
    """Refuse a name that could not be imported, or that means something already."""
    what = f"name: {shown(name)}"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,49}", name):
        raise InputError(
            f"name must be 1 to 50 letters, digits and underscores, not starting with a digit; got {shown(name)}"
        )
    if name in ("__init__", "conftest") or name.startswith("test_"):
        raise InputError(f"{what} means something else to Python or pytest; choose another name")
    for path in (Path(file.format(name)) for file in _FILES):
        if path.exists() or path.is_symlink():
            raise InputError(f"{what} cannot be used, as {path} already exists; choose another name")
    if keyword.iskeyword(name) or name in dir(builtins):
        raise InputError(f"{what} is a word of Python; choose another name")
    if name != _NAME and name in re.findall(r"\w+", text):
        raise InputError(f"{what} is already used inside the file; choose another name")
    if _importable(name):
        raise InputError(f"{what} is already the name of a module; choose another name")
    from fedkeel.methods import methods

    if name in methods():
        raise InputError(f"{what} is already the name of a method of fedkeel; choose another name")


def _importable(name: str) -> bool:
    with suppress(ValueError):  # a module without a specification, such as __main__
        return find_spec(name) is not None
    return True


def _renamed(text: str, name: str) -> str:
    return re.sub(rf"(?<![A-Za-z0-9])(test_)?{_NAME}\b", rf"\g<1>{name}", text)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({reason(error)})") from None
