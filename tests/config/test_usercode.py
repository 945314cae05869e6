"""Which modules of a process are the user's own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedkeel.config import usercode


def module(name: str, file: Path) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file)
    return made


def test_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, whatever names it has; nothing that was installed, wherever that is."""
    before = {each.__name__ for each in usercode.own_modules()}
    main = module("__mp_main__", tmp_path / "script.py")
    for name, each in {
        "mine": module("mine", tmp_path / "mine.py"),
        "another_name": module("mine", tmp_path / "mine.py"),
        "__main__": main,
        "__mp_main__": main,
        "theirs": module("theirs", tmp_path / "lib" / "site-packages" / "theirs.py"),
        "debians": module("debians", Path("/usr/lib/python3/dist-packages/debians.py")),
        "nowhere": ModuleType("nowhere"),
    }.items():
        monkeypatch.setitem(sys.modules, name, each)
    found = [each.__name__ for each in usercode.own_modules()]
    assert sorted({*found} - before) == ["__mp_main__", "mine"]
    assert len(found) == len({*found})
    assert not {"torch", "numpy", "fedkeel", "fedkeel.errors", "json"} & {*found}
