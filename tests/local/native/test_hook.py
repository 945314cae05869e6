"""The hook that builds native kernels when fedkeel is installed, with as much of hatchling as it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.helpers.native import CLEAN, FAILING, Place, native, script, tree
from tests.helpers.repository import ROOT


class App:
    """What a hook may tell."""

    def __init__(self) -> None:
        self.warnings = list[str]()
        self.display_warning: Callable[[str], None] = self.warnings.append

    def abort(self, message: str) -> None:
        raise SystemExit(message)


class Interface:
    """In the place of hatchling's."""

    def __init__(self, root: Path) -> None:
        self.root, self.app = str(root), App()


@pytest.fixture
def hook(place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    """In a tree whose kernels a compiler pretends to compile."""
    for name in ("", ".builders", ".builders.hooks", ".builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, f"hatchling{name}", ModuleType(f"hatchling{name}"))
    interface = SimpleNamespace(BuildHookInterface=Interface)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    tree(place.root / "tree")
    monkeypatch.chdir(place.root)
    spaces: dict[str, Any] = {"__name__": "hatch_build"}
    exec(compile((ROOT / "hatch_build.py").read_text(), "hatch_build.py", "exec"), spaces)
    return spaces["NativeKernels"](place.root / "tree")


def data() -> dict[str, Any]:
    return {"pure_python": True, "tag": None, "force_include": {}}


def lib(place: Place) -> Path:
    return place.root / "tree" / native.HERE / "lib"


def test_an_editable_installation_builds_in_the_tree(hook: Any, place: Place) -> None:
    place.compiler(CLEAN)
    told = data()
    hook.initialize("editable", told)
    hook.finalize("editable", told, "")
    assert told == data()
    assert len([*lib(place).glob("libfedkeel-*.so")]) == len(script("native").sets())
    assert hook.app.warnings == []


def test_a_wheel_has_libraries_of_its_own(hook: Any, place: Place) -> None:
    place.compiler(CLEAN)
    told = data()
    hook.initialize("standard", told)
    assert told["pure_python"] is False
    assert told["tag"].startswith("py3-none-")
    assert told["tag"].count("-") == 2
    inside = {path.removeprefix("fedkeel/local/native/lib/") for path in told["force_include"].values()}
    assert inside == {"built.json", *(f"libfedkeel-{name}.so" for name in script("native").sets())}
    assert all(Path(path).is_file() for path in told["force_include"])
    hook.finalize("standard", told, "")
    assert not any(Path(path).parent.exists() for path in told["force_include"])
    assert not lib(place).exists()


def test_a_wheel_without_libraries_is_for_every_machine(hook: Any, place: Place) -> None:
    place.compiler(FAILING)
    told = data()
    hook.initialize("standard", told)
    assert (told["pure_python"], told["tag"]) == (True, None)
    assert [*told["force_include"].values()] == ["fedkeel/local/native/lib/absent.txt"]
    (warning,) = hook.app.warnings
    assert "error: boom" in warning


def test_an_installation_that_requires_them_fails(hook: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.compiler(FAILING)
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    for version in ("standard", "editable"):
        with pytest.raises(SystemExit, match="error: boom"):
            hook.initialize(version, data())
