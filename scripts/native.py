"""Compiles the native kernels: one library for each instruction set.

`make native` runs this for the working tree, and `hatch_build.py` uses it when fedkeel is installed. What is up to date
is not compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path("src/fedkeel/local/native")
"""Of the kernels, below the root of the project: their sources are in `kernels`, their libraries in `lib`."""
MODES = ("auto", "require", "no")
FLAGS = (
    "-std=c++20",
    "-O2",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
)
SETS = {
    "base": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma"),
}
BUILT, ABSENT = "built.json", "absent.txt"
"""Beside the libraries: what they were made from; or one sentence why there are none, which fedkeel tells its user."""


class BuildError(Exception):
    """Native kernels were required, and could not be built; or it was not understood whether they are wanted."""


@dataclass(frozen=True)
class Outcome:
    """What became of a build."""

    made: list[str] = field(default_factory=list)
    """Instruction sets whose libraries are there now."""
    fresh: bool = False
    """Whether any was compiled for that."""
    warning: str | None = None
    """What is missing and why, with the compiler's own message."""


def sets(machine: str = platform.machine(), system: str = platform.system()) -> dict[str, tuple[str, ...]]:
    """The instruction sets that are built on such a machine, with the compiler's flags for each."""
    if machine.lower() in ("aarch64", "arm64"):
        return {"neon": ()}
    return SETS if machine.lower() in ("x86_64", "amd64") and system == "Linux" else {"base": ()}


def mode() -> str:
    """What `FEDKEEL_NATIVE` asks for."""
    asked = os.environ.get("FEDKEEL_NATIVE") or "auto"
    if asked not in MODES:
        raise BuildError(f"FEDKEEL_NATIVE must be one of {', '.join(MODES)}; got {asked!r}")
    return asked


def compiler() -> list[str] | None:
    """The command of a C++ compiler: `$CXX`, or the first one that is found."""
    if given := shlex.split(os.environ.get("CXX", "")):
        return given
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def library(folder: Path, name: str) -> Path:
    """The file of an instruction set."""
    return folder / f"libfedkeel-{name}.so"


def build(source: Path, into: Path) -> Outcome:
    """Compile `fedkeel.cpp` in `source` as `FEDKEEL_NATIVE` asks; afterwards `into` holds what these sources gave.

    Libraries that an earlier build left there are removed where this one has none.
    """
    asked = mode()
    if asked == "no":
        return _without(into, "FEDKEEL_NATIVE=no was set when fedkeel was installed")
    command = compiler()
    if command is None:
        why = "no C++ compiler was found when fedkeel was installed"
        if asked == "require":
            raise BuildError(
                f"FEDKEEL_NATIVE=require needs a compiler, but {why}; install one (g++ or clang++), or set CXX"
            )
        return _without(into, why, "; install one (g++ or clang++), or set CXX")
    known, wanted = _read(into / BUILT), _wanted(source, command)
    old = [name for name in wanted if known.get(name) != wanted[name] or not library(into, name).exists()]
    failures = _compile(command, source, into, old)
    if failures and asked == "require":
        raise BuildError(_told(failures))
    made = [name for name in wanted if name not in failures]
    if not made:
        why = f"the C++ compiler ({shlex.join(command)}) failed when fedkeel was installed"
        return _without(into, why, f"\n{_told(failures)}")
    _keep_only(into, {*(library(into, name).name for name in made), BUILT})
    if old:
        _write(into / BUILT, json.dumps({name: wanted[name] for name in made}) + "\n")
    return Outcome(made, bool(old), _told(failures) if failures else None)


def _compile(command: Sequence[str], source: Path, into: Path, names: Sequence[str]) -> dict[str, str]:
    """The compiler's messages where it failed, by instruction set."""

    def one(name: str) -> str | None:
        final = library(into, name)
        partial = final.with_name(f".{final.name}.{os.getpid()}")
        line = [*command, *FLAGS, "-shared", *sets()[name], str(source / "fedkeel.cpp"), "-o", str(partial)]
        try:
            done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode or not partial.exists():
                said = (done.stderr or done.stdout).strip() or f"it ended with code {done.returncode}"
                return f"{shlex.join(line)}\n{said}"
            os.replace(partial, final)
        except OSError as error:
            return f"{shlex.join(line)}\n{error}"
        finally:
            partial.unlink(missing_ok=True)
        return None

    into.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = dict(zip(names, pool.map(one, names), strict=True))
    return {name: message for name, message in said.items() if message is not None}


def _wanted(source: Path, command: Sequence[str]) -> dict[str, str]:
    """For each instruction set a digest of all that its library depends on."""
    try:
        version = subprocess.run([*command, "--version"], capture_output=True, check=False).stdout
    except OSError:  # which compiling will tell
        version = b""
    digest = hashlib.sha256(version)
    for path in sorted(path for path in source.iterdir() if path.suffix in (".cpp", ".h")):
        digest.update(f"\n{path.name}\n".encode() + path.read_bytes())
    common = digest.hexdigest()
    return {
        name: hashlib.sha256(repr((common, [*command], FLAGS, more)).encode()).hexdigest()
        for name, more in sets().items()
    }


def _without(into: Path, why: str, more: str = "") -> Outcome:
    """A folder that says why it has no libraries."""
    into.mkdir(parents=True, exist_ok=True)
    _keep_only(into, {ABSENT})
    _write(into / ABSENT, why + "\n")
    return Outcome(warning=f"no native kernels, so training is slower: {why}{more}")


def _keep_only(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names and not path.name.startswith("."):  # another build may be at work on hidden ones
            path.unlink(missing_ok=True)


def _told(failures: dict[str, str]) -> str:
    """The first message in full: the others say the same."""
    said = next(iter(failures.values()))
    return f"the C++ compiler failed for {', '.join(failures)}: {said if len(said) < 4000 else said[:4000] + ' ...'}"


def _read(path: Path) -> dict[str, str]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def main() -> None:
    """Build the libraries of the working tree."""
    place = Path(__file__).parents[1] / HERE
    try:
        if mode() == "no":  # the libraries stay for the next time
            return
        outcome = build(place / "kernels", place / "lib")
    except BuildError as error:
        sys.exit(f"fedkeel: {error}")
    if outcome.warning:
        print(f"fedkeel: {outcome.warning}", file=sys.stderr)
    if outcome.fresh and outcome.made:
        print(f"native kernels: {', '.join(outcome.made)} in {HERE / 'lib'}")


if __name__ == "__main__":
    main()
