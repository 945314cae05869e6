"""Scripts, benchmarks and examples, which few tests run: what they import from fedkeel is there."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.repository import ROOT

PROGRAMS = sorted(path for folder in ("scripts", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_it_imports_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "fedkeel":
            continue
        assert node.module is not None
        if node.module.startswith("fedkeel.world.flower"):
            pytest.importorskip("flwr")
        module = import_module(node.module)
        for name in node.names:
            below = hasattr(module, "__path__") and find_spec(f"{node.module}.{name.name}") is not None
            assert hasattr(module, name.name) or below, f"{node.module} has no {name.name}"
