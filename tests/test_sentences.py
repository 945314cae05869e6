"""Errors are sentences that a person can act on: what is wrong, and after a semicolon what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.repository import ROOT

SOURCE = ROOT / "src" / "fedkeel"
DONE = (
    "config", "methods", "models", "report", "server", "sinks", "study", "task", "wire", "world", "errors.py",
    "params.py", "streams.py",
)  # fmt: skip
OLD = re.compile(r"\bnot accepted\b|\baccepted:")
ERRORS = {"InputError", "FedkeelError", "DivergenceError", "MishapError"}


def files() -> list[Path]:
    places = [SOURCE / name for name in DONE]
    return [each for place in places for each in ([place] if place.suffix else sorted(place.rglob("*.py")))]


def text(node: ast.expr) -> str | None:
    """A literal, with `{}` for what is filled in; None if it is none."""
    match node:
        case ast.Constant(value=str() as found):
            return found
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = text(left), text(right)
            return None if first is None else first + (second if second is not None else "{}")
    return None


def messages(source: str) -> Iterator[tuple[int, str]]:
    """(Line, message) of every error with a literal message."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
            told = text(node.args[0])
            if told is not None:
                yield node.lineno, told


def says_what_to_do(message: str) -> bool:
    """After a semicolon; a cause in parentheses, or another error that is filled in at the end, may say it too."""
    problem, _, remedy = message.partition("; ")
    return bool(problem and remedy) or "({})" in message or message.endswith("{}")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_error_says_what_to_do(path: Path) -> None:
    found = [*messages(path.read_text(encoding="utf-8"))]
    assert [(line, told) for line, told in found if OLD.search(told)] == []
    assert [(line, told) for line, told in found if not says_what_to_do(told)] == []


def test_what_is_found() -> None:
    source = 'raise InputError(f"a {b} is wrong; got {c}")\nraise FedkeelError("x: 3 is not accepted" + d)\nother("y")'
    assert [*messages(source)] == [(1, "a {} is wrong; got {}"), (2, "x: 3 is not accepted{}")]
    assert says_what_to_do("a must be b; got {}")
    assert not says_what_to_do("a is wrong")
    assert not says_what_to_do("a is wrong; ")
    assert OLD.search("x: 3 is not accepted")
    assert sum(len([*messages(path.read_text(encoding="utf-8"))]) for path in files()) > 150
