"""Who may import whom: the walls of docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "fedkeel"

LEAVES = {
    "errors",
    "streams",
    "config.section",
    "config.files",
    "config.usercode",
    "config.userdraw",
    "config.yamltext",
}
"""Known to everybody: they know nothing but each other."""
MAY: dict[str, set[str]] = {
    "params": {"errors"},
    "models": LEAVES | {"params"},
    "data": LEAVES,
    "methods": {"errors", "params", "config.section", "config.usercode"},
    "wire": LEAVES | {"params", "methods"},
    "task": LEAVES,
    "local": LEAVES | {"params", "data", "methods", "wire", "task"},
    "server": LEAVES | {"params", "methods", "wire", "record.rows"},
    "world": LEAVES | {"params", "data", "methods", "wire", "local", "server", "record.rows", "runner.stopping"},
    "record": LEAVES | {"config", "task"},
    "study": {"*"},
    "sinks": LEAVES | {"record", "runner", "config"},
    "report": LEAVES | {"params", "data", "world", "record", "study", "config", "runner"},
    "config": {"errors", "data", "models", "methods", "wire", "task", "local.settings", "record.settings"}
    | {"server.settings", "world.faults", "world.fleet.settings"},
    "runner": {"*"},
    "deploy": {"*"},
    "api": {"*"},
    "__init__": {"*"},
    "__main__": {"cli"},
    "cli": {"*"},
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


KNOWN = {name(path) for path in modules()}


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that one imports, inside of functions too; imports for types alone count as well."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module and node.module.split(".")[0] == "fedkeel":
                base = node.module.removeprefix("fedkeel").removeprefix(".")
                for each in node.names:
                    inner = f"{base}.{each.name}".removeprefix(".")
                    yield inner if inner in KNOWN else base
        elif isinstance(node, ast.Import):
            yield from (each.name.removeprefix("fedkeel.") for each in node.names if each.name.startswith("fedkeel."))


def allowed(what: str, by: str) -> bool:
    home = by.split(".")[0]
    may = MAY.get(home, set())
    return what.split(".")[0] == home or "*" in may or any(what == each or what.startswith(f"{each}.") for each in may)


@pytest.mark.parametrize("path", modules(), ids=name)
def test_a_module_knows_only_what_it_may(path: Path) -> None:
    by = name(path)
    if by in LEAVES:
        assert {what for what in imported(path) if what} <= LEAVES
        return
    assert [what for what in imported(path) if what and not allowed(what, by)] == []


def test_nobody_knows_the_command_line() -> None:
    others = [path for path in modules() if name(path) != "__main__" and not name(path).startswith("cli")]
    assert [name(path) for path in others for what in imported(path) if what.startswith("cli")] == []


def test_studies_know_no_reports() -> None:
    assert [
        name(p) for p in modules() if name(p).startswith("study") for w in imported(p) if w.startswith("report")
    ] == []


@pytest.mark.parametrize(("package", "folder"), [("flwr", "world.flower."), ("ray", "local.cluster.")])
def test_only_one_folder_knows_it(package: str, folder: str) -> None:
    found = {
        name(path)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for each in (
            [node.module or ""] if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        )
        if each.split(".")[0] == package
    }  # fmt: skip
    assert found
    assert all(module.startswith(folder) for module in found)


def test_nothing_but_the_command_line_knows_deployments() -> None:
    others = [path for path in modules() if not name(path).startswith(("cli", "deploy"))]
    assert [name(path) for path in others for what in imported(path) if what.startswith("deploy")] == []


def test_few_files_stand_beside_the_folders() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == {
        "__init__", "__main__", "api", "errors", "params", "streams",
    }  # fmt: skip


def test_nothing_imports_in_a_circle() -> None:
    """Not even by way of a package's __init__."""
    graph = {
        name(path): {what for what in imported(path) if what in KNOWN and what != name(path)} for path in modules()
    }
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way, module])
        if module not in done:
            for what in graph[module]:
                visit(what, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())
