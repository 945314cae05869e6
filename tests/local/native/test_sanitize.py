"""`make sanitize` finds what it is for, on drivers of one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.native import compiler, script
from tests.helpers.repository import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("return 0;", None),
        ("volatile int* p = new int(argc); delete p; return *p * 0;", "heap-use-after-free"),
        ("int x = 2147483647; x += argc; return x > 0;", "signed integer overflow"),
        ("static int s; std::thread t([] { s++; }); s++; t.join(); return 0;", "data race"),
        ("return 7;", "it ended with code 7"),
    ],
)
def test_sanitizers_report(tmp_path: Path, body: str, reported: str | None) -> None:
    compiler()
    (tmp_path / "fedkeel.cpp").write_text("int unused;\n")
    (tmp_path / "driver.cpp").write_text(f"#include <thread>\nint main(int argc, char**) {{ {body} }}\n")
    isa = next(iter(script("native").sets()))
    line = [sys.executable, str(ROOT / "scripts" / "sanitize.py"), "--isa", isa]
    line += ["--source", str(tmp_path), "--driver", str(tmp_path / "driver.cpp")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == (reported is not None), done.stdout
    assert (reported or "clean") in done.stdout
