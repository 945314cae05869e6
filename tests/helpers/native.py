"""The native library, or the reason to skip a test; scripts as modules; a place to build kernels, or to pretend it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedkeel.local.native import library
from tests.helpers.repository import ROOT


def needed() -> library.Library:
    """The library; without one the test is skipped, or fails where `FEDKEEL_NATIVE=require`."""
    found = library.load()
    if found is None:
        pytest.skip(str(library.absence()))
    return found


def compiler() -> str:
    """A C++ compiler; without one the test is skipped, or fails where `FEDKEEL_NATIVE=require`."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found is None:
        assert os.environ.get("FEDKEEL_NATIVE") != "require", "there is no C++ compiler"
        pytest.skip("there is no C++ compiler")
    return found


def compiled(path: Path, source: str) -> Path:
    """A library of a few lines."""
    command = [compiler(), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def script(name: str) -> ModuleType:
    """A script of the repository as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


native = script("native")
CLEAN = """#!/bin/sh
for last; do :; done
if [ "$last" = --version ]; then echo pretended 1.0; exit; fi
echo "$@" >> "$(dirname "$0")/calls"
echo library > "$last"
"""
FAILING = CLEAN + 'echo "fedkeel.cpp:7: error: boom" >&2; exit 1\n'


class Place:
    """Sources, a folder for libraries, and a compiler."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.source, self.lib, self._patch = root, root / "kernels", root / "lib", patch
        self.source.mkdir()
        (self.source / "fedkeel.cpp").write_text("int x;\n")

    def compiler(self, text: str) -> None:
        path = self.root / "compiler"
        path.write_text(text)
        path.chmod(0o755)
        self._patch.setenv("CXX", str(path))

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.lib.iterdir())

    def build(self) -> Any:
        return native.build(self.source, self.lib)


def tree(root: Path) -> Path:
    """What `make native` needs of a working tree; its kernels are a few lines."""
    place = root / native.HERE
    (place / "kernels").mkdir(parents=True)
    (place / "kernels" / "fedkeel.cpp").write_text(
        f'extern "C" __attribute__((visibility("default"))) int fk_abi(void) {{ return {library.ABI}; }}\n'
    )
    (root / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "native.py", root / "scripts")
    return place
