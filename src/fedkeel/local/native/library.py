"""The compiled kernels: which library this processor can run best, and why there is none where there is none.

`FEDKEEL_NATIVE` says whether it is used: `auto` where there is one, `require` or else an error, `no`. `FEDKEEL_ISA`
names one instruction set, for tests and to find errors.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedkeel.errors import InputError, shown, words

ABI = 4
"""Of the interface that the modules beside this one call; `fk_abi` of a library has to return the same."""
FOLDER = Path(__file__).parent / "lib"
CPUINFO = Path("/proc/cpuinfo")
MODES = ("auto", "require", "no")
NEEDS: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "avx2": frozenset(("avx", "avx2", "fma")),
    "avx512": frozenset(("avx", "avx2", "fma", "avx512f", "avx512vl", "avx512dq", "avx512bw")),
}
"""On x86: what a processor must have for an instruction set, from the least to the best."""
_ABSENT = "absent.txt"


@dataclass(frozen=True)
class Library:
    """A library that is loaded; calls of its functions let other Python threads run."""

    handle: ctypes.CDLL
    isa: str
    """The instruction set that it was compiled for."""
    path: Path


@dataclass(frozen=True)
class _Search:
    """The library that was found, or a sentence why there is none."""

    library: Library | None
    why: str | None


def load() -> Library | None:
    """The best library, or None; an InputError where `FEDKEEL_NATIVE=require` and there is none."""
    if mode() == "no":
        return None
    found = _search(FOLDER, _candidates())
    if found.library is None and mode() == "require":
        raise InputError(f"FEDKEEL_NATIVE=require cannot be met: {found.why}")
    return found.library


def named(isa: str) -> Library | None:
    """The library for one instruction set, if it can be used here."""
    return _search(FOLDER, (isa,)).library


def absence() -> str | None:
    """One sentence why there is no library, and how to get one; None if there is one."""
    if mode() == "no":
        return "native kernels are switched off by FEDKEEL_NATIVE=no"
    return _search(FOLDER, _candidates()).why


def mode() -> str:
    """What `FEDKEEL_NATIVE` says."""
    asked = os.environ.get("FEDKEEL_NATIVE") or "auto"
    if asked not in MODES:
        raise InputError(f"FEDKEEL_NATIVE must be one of {', '.join(MODES)}; got {shown(asked)}")
    return asked


def offered() -> tuple[str, ...]:
    """The instruction sets that this processor has and kernels can be built for, the best first."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return ("neon",)
    if machine not in ("x86_64", "amd64"):
        return ("base",)
    has = features(CPUINFO)
    return tuple(name for name in reversed(NEEDS) if NEEDS[name] <= has)


def built() -> tuple[str, ...]:
    """The instruction sets that there are libraries for, whether or not they can be used here."""
    names = {path.stem.removeprefix("libfedkeel-") for path in FOLDER.glob("libfedkeel-*.so")}
    return tuple(sorted(names, key=lambda name: ([*NEEDS].index(name) if name in NEEDS else -1, name), reverse=True))


def usable() -> tuple[str, ...]:
    """The instruction sets that `FEDKEEL_ISA` may name here, the best first."""
    made = built()
    return tuple(name for name in offered() if name in made)


@cache
def features(cpuinfo: Path) -> frozenset[str]:
    """What all processors of this machine have, by Linux's names; nothing where the system does not say."""
    try:
        lines = {*cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()}
    except OSError:
        return frozenset()
    told = [frozenset(line.partition(":")[2].split()) for line in lines if line.split(":")[0].strip() == "flags"]
    return frozenset.intersection(*told) if told else frozenset()


def how_to_build() -> str:
    """What a user does to get the library that belongs to this version."""
    root = Path(__file__).parents[4]
    if (root / "scripts" / "native.py").is_file() and (root / "Makefile").is_file():
        return f"with a C++ compiler, run make native in {root}"
    return "with a C++ compiler, install fedkeel again with pip install --no-cache-dir --force-reinstall --no-deps"


def _candidates() -> tuple[str, ...]:
    """The instruction sets that may be used, the best first; one in `FEDKEEL_ISA` that cannot be had is refused."""
    asked, has = os.environ.get("FEDKEEL_ISA"), offered()
    if not asked:
        return has
    if asked not in {*NEEDS, "neon"}:
        raise InputError(f"FEDKEEL_ISA must be one of {', '.join(has)}; got {shown(asked)}")
    if asked not in has:
        raise InputError(f"FEDKEEL_ISA={asked} is not supported by this processor; use one of {', '.join(has)}")
    if (made := built()) and asked not in made:
        raise InputError(f"FEDKEEL_ISA={asked} was not built; use one of {', '.join(made)}")
    return (asked,)


@cache
def _search(folder: Path, candidates: tuple[str, ...]) -> _Search:
    """Try the libraries of these instruction sets one after the other."""
    problem = None
    for isa in candidates:
        path = folder / f"libfedkeel-{isa}.so"
        if not path.exists():
            continue
        handle, said = _open(path)
        if handle is not None:
            return _Search(Library(handle, isa, path), None)
        problem = problem or said
    return _Search(None, f"{problem or _reason(folder)}; {how_to_build()}")


def _open(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """(The library, or None; what is wrong with it)."""
    try:
        handle = ctypes.CDLL(str(path))
        abi = int(handle.fk_abi())
    except OSError as error:
        return None, f"the native library {path} cannot be loaded ({words(error)})"
    except AttributeError:
        return None, f"the native library {path} is not fedkeel's"
    if abi != ABI:
        return None, f"the native library {path} is of another version of fedkeel (its interface is {abi}, not {ABI})"
    return handle, ""


def _reason(folder: Path) -> str:
    """Why nothing was built, as the installation left it."""
    try:
        why = (folder / _ABSENT).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        why = ""
    return f"there are no native kernels: {why or 'they were not built'}"
