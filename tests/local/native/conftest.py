"""A place to build kernels in."""

from pathlib import Path

import pytest

from tests.helpers.native import Place, native


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("FEDKEEL_NATIVE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native, "sets", lambda: native.SETS)
    return Place(tmp_path, monkeypatch)
