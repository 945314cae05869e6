"""Runs the native kernels under sanitizers: memory errors, undefined behaviour, data races.

Compiles a driver with the kernels and runs it: for memory errors and undefined behaviour with each instruction set that
this processor has, for data races with the last of them, as races do not depend on the width of vectors. Ends with 1 if
a program does not compile, returns an error or is reported.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import native

ROOT = Path(__file__).parents[1]
MEMORY, RACES = "address,undefined", "thread"
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
FLAGS = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
"""Behind those of the libraries; -O2 takes twice as long to compile and finds no more."""
MINUTES = 10
"""Until a program counts as hung."""


def offered() -> list[str]:
    """The instruction sets that this processor has and libraries are built for."""
    sys.path.insert(0, str(ROOT / "src"))
    from fedkeel.local.native import library

    return [name for name in native.sets() if name in library.offered()]


def problem(source: Path, driver: Path, sanitizer: str, isa: str, scratch: Path) -> str | None:
    """What one program says, if anything is wrong."""
    command = native.compiler()
    if command is None:
        return "no C++ compiler was found; install one (g++ or clang++), or set CXX"
    program = scratch / f"{sanitizer.replace(',', '-')}-{isa}"
    line = [*command, *native.FLAGS, *FLAGS, f"-fsanitize={sanitizer}", *native.sets()[isa], f"-I{source}"]
    line += [str(driver), str(source / "fedkeel.cpp"), "-o", str(program)]
    made = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
    if made.returncode:
        return f"{shlex.join(line)}\n{made.stdout}{made.stderr}"
    code, said = _run([str(program)])
    if code and "unexpected memory mapping" in said:  # of older sanitizers on newer kernels, whose addresses vary more
        code, said = _run(["setarch", platform.machine(), "-R", str(program)])
    return f"it ended with code {code}\n{said}" if code else None


def _run(line: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            line,
            env={**os.environ, **OPTIONS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60 * MINUTES,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"it did not end within {MINUTES} minutes"
    return done.returncode, done.stdout


def main() -> int:
    """One line per program, and what it said where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=ROOT / native.HERE / "kernels", help="the folder of fedkeel.cpp")
    parser.add_argument("--driver", type=Path, default=ROOT / "tests" / "native" / "sanitize" / "driver.cpp")
    parser.add_argument("--isa", action="append", help="an instruction set; default: all that this processor has")
    given = parser.parse_args()
    has = offered()
    if strange := [name for name in given.isa or () if name not in has]:
        parser.error(f"--isa: {strange[0]} is unknown; choose from {', '.join(has)}")
    chosen = given.isa or has
    pairs = [*((MEMORY, isa) for isa in chosen), (RACES, chosen[-1])]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [*pool.map(lambda pair: problem(given.source, given.driver, *pair, Path(scratch)), pairs)]
    for (sanitizer, isa), said in zip(pairs, found, strict=True):
        print(f"{sanitizer}, {isa}: {'failed' if said else 'clean'}")
        if said:
            print(said)
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
