"""How the tests lie: shared code is in `tests.helpers`, and no test module imports another one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import helpers
from tests.helpers.repository import ROOT

TESTS, SOURCE = ROOT / "tests", ROOT / "src" / "fedkeel"
IN_TEXT = re.compile(r"\b(?:from|import)\s+(tests\b[\w.]*)|[\"\'](tests\.[\w.]+)")
"""An import in a program that a test hands to another process, or a module's name in quotes."""

SUSPECT = re.compile(r"\btests\b|\bfrom\s+\.|\b(?:from|import)\s+test_")


def imported(source: str, package: str) -> set[str]:
    """The modules of `tests` that a file names: anywhere in it, also relative ones and ones inside of strings."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base if base not in ("tests", package) else f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            found |= {str(node.args[0].value)} if str(node.args[0].value).startswith("tests.") else set()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {name for names in IN_TEXT.findall(node.value) for name in names if name}
    return {name for name in found if name.split(".")[0] == "tests" or name.split(".")[-1].startswith("test_")}


def astray(source: str, package: str) -> set[str]:
    """Those that are no helpers."""
    if not SUSPECT.search(re.sub(r"^from tests\.helpers\b.*$", "", source, flags=re.MULTILINE)):
        return set()  # which most files are: to parse them takes longer than all other tests of this module
    return {name for name in imported(source, package) if not re.match(r"tests\.helpers(\.(?!test_)|$)", name)}


def test_only_helpers_are_imported() -> None:
    found = {}
    for path in set(TESTS.rglob("*.py")) - {Path(__file__)}:
        package = ".".join(path.relative_to(ROOT).parts[:-1])
        found[str(path.relative_to(ROOT))] = astray(path.read_text(encoding="utf-8"), package)
    assert len(found) > 100
    assert {name: modules for name, modules in found.items() if modules} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from tests.cli.test_cli import QUICK",
        "import tests.cli.test_cli",
        "from tests.cli import test_cli",
        "from . import test_run",
        "from .test_run import x",
        "from ..cli import test_cli",
        "from ..cli.test_cli import x",
        "from .. import test_kills",
        "def f():\n    from tests.test_kills import KILLS",
        "import test_run",
        "PROGRAM = 'import sys; from tests.cli.test_cli import *'",
        "import importlib\nimportlib.import_module('tests.cli.test_cli')",
    ],
)
def test_an_import_of_another_test_is_found(source: str) -> None:
    assert astray(source, "tests.config"), source


@pytest.mark.parametrize(
    "source",
    [
        "from tests.helpers import federation",
        "from tests.helpers.federation import N",
        "from ..helpers import federation",
        "import fedkeel.data",
        "from fedkeel import tests_of_mine",
        "PROGRAM = 'from tests.helpers.workers import orders'",
    ],
)
def test_an_import_of_a_helper_is_fine(source: str) -> None:
    assert astray(source, "tests.config") == set()


def test_folders_are_those_of_the_source() -> None:
    """Fuzzing and whole runs go across them; the helpers belong to all."""
    apart = {"helpers", "fuzz"}
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    strange = {each for each in folders if not (SOURCE / each).is_dir() and not apart & {*each.parts}}
    assert strange == set()


def test_files_that_the_docs_name_are_there() -> None:
    """Also those below the package that are named without it."""
    named = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|sh|yaml|md))`")
    missing = {
        (str(page.relative_to(ROOT)), path)
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for path in named.findall(page.read_text(encoding="utf-8"))
        if not any((base / path).exists() for base in (ROOT, SOURCE, page.parent)) and not path.startswith("runs/")
    }
    assert missing == set()


def test_every_helper_has_its_line() -> None:
    lines = re.findall(r"^- `(\w+)`: ", helpers.__doc__ or "", re.MULTILINE)
    assert lines == sorted(path.stem for path in (TESTS / "helpers").glob("*.py") if path.stem != "__init__")
