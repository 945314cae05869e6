"""What settings mean: the docstring under each field, read from the source when somebody asks.

Pydantic can read them too (`use_attribute_docstrings`), but it does so whenever a class is made. That would slow down
the start of every command by more than half.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache

from pydantic import BaseModel


def meaning(section: type[BaseModel], name: str) -> str:
    """The sentences under a field, on one line; empty where there are none or the source cannot be found.

    A class that only changes a field's default or type keeps what its base says about it. `Field(description=...)`
    goes before.
    """
    given = section.model_fields[name].description
    owners = (owner for owner in section.__mro__ if issubclass(owner, BaseModel) and owner is not BaseModel)
    told = (_written(owner).get(name) for owner in owners)
    return given or next(filter(None, told), "")


@lru_cache(maxsize=1024)
def _written(owner: type) -> dict[str, str]:
    """The docstrings under the fields that a class itself defines."""
    found = _definition(owner)
    if found is None:
        return {}
    pairs = zip(found.body, found.body[1:], strict=False)
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ")
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _definition(owner: type) -> ast.ClassDef | None:
    """Where a class is defined; in a file, or in a cell of a notebook."""
    for file in _files(owner):
        found: ast.AST | None = _parsed("".join(linecache.getlines(file)))
        for name in owner.__qualname__.replace(".<locals>", "").split("."):
            found = found and _inside(found, name)
        if isinstance(found, ast.ClassDef):
            return found
    return None


def _files(owner: type) -> Iterator[str]:
    """The file of its module, and that of its functions: in a notebook, only they know their cell."""
    module = getattr(sys.modules.get(owner.__module__), "__file__", None)
    if module:
        yield module
    for member in vars(owner).values():
        function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        if code is not None:
            yield code.co_filename


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.AST | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _inside(tree: ast.AST, name: str) -> ast.AST | None:
    """The last class or function of that name in a body, also where it stands under an `if` or the like."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    named = [each for each in ast.walk(tree) if isinstance(each, kinds) and each.name == name and each is not tree]
    return named[-1] if named else None
