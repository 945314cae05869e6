"""What `fedkeel doctor` looks at: one function for each line, or for a few that belong together.

PyTorch is imported only where it must be, so that a broken one is a line among others.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import fedkeel
from fedkeel.errors import FedkeelError, words

Verdict = Literal["ok", "optional", "warning", "broken"]
EXTRAS = ("pyarrow", "flwr", "ray", "mlflow", "tensorboard", "wandb", "optuna")
LITTLE_MEMORY = 1e9
MOST_FILES = 50_000
"""That are counted in the cache."""


@dataclass(frozen=True)
class Finding:
    """One line."""

    item: str
    verdict: Verdict
    found: str
    values: dict[str, Any] = field(default_factory=dict)
    """The same for programs."""


def findings() -> list[Finding]:
    """Everything; a check that fails is a finding itself."""
    return [finding for name, check in CHECKS.items() for finding in _guarded(name, check)]


def _guarded(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return [*check()]
    except Exception as error:
        said = words(error)
        return [Finding(name, "broken", said if isinstance(error, FedkeelError) else f"{type(error).__name__}: {said}")]


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("Python", "ok", f"{version} ({sys.executable})", {"version": version, "path": sys.executable})


def _fedkeel() -> Iterator[Finding]:
    place, version = str(Path(fedkeel.__file__).parent), fedkeel.__version__
    installed = _version("fedkeel")
    values = {"version": version, "path": place, "installed": installed}
    if installed in (version, None):
        note = "" if installed else ", not installed, but found on Python's path"
        yield Finding("fedkeel", "ok", f"{version} ({place}){note}", values)
    else:
        told = f"{version} ({place}), but version {installed} is installed; install it again"
        yield Finding("fedkeel", "warning", told, values)


def _torch() -> Iterator[Finding]:
    import torch

    threads, cuda = torch.get_num_threads(), torch.cuda.is_available()
    found = f"{torch.__version__}, {_many(threads, 'thread')}, {'CUDA' if cuda else 'no CUDA'}"
    yield Finding("torch", "ok", found, {"version": str(torch.__version__), "threads": threads, "cuda": cuda})


def _machine() -> Iterator[Finding]:
    from fedkeel.local.machine import all_bytes, bytes_and_why, cores_and_why, free_bytes, limits, processor

    name = processor() or "unknown"
    yield Finding("processor", "ok", f"{name}, {platform.machine()}", {"name": name, "machine": platform.machine()})
    limit = limits()
    used, why = cores_and_why()
    told = f"{used} of {os.cpu_count()} can be used" + (f", by {why}" if used < (os.cpu_count() or 1) else "")
    yield Finding("cores", "ok", told, {"usable": used, "all": os.cpu_count(), "limit": limit.cores})
    free, (usable, why) = free_bytes(), bytes_and_why()
    told = f"{free / 1e9:.3g} of {all_bytes() / 1e9:.3g} GB free"
    told += f"; {why} allows {usable / 1e9:.3g} GB" if usable < all_bytes() else ""
    little = free < LITTLE_MEMORY
    told += "; large models will not fit" if little else ""
    values = {"free": free, "all": all_bytes(), "limit": limit.memory}
    yield Finding("memory", "warning" if little else "ok", told, values)


def _native() -> Iterator[Finding]:
    from fedkeel.local.native import library

    built, offered = library.built(), library.offered()
    values: dict[str, Any] = {"built": [*built], "offered": [*offered], "mode": library.mode()}
    what = f"built: {_list(built)}; this processor has: {_list(offered)}"
    loaded = library.load()
    if loaded is None:
        why = library.absence()
        yield Finding("native kernels", "warning", f"{why} ({what})", {**values, "loaded": None, "why": why})
        return
    values |= {"loaded": loaded.isa, "path": str(loaded.path)}
    best = offered[0]
    better = loaded.isa != best and not os.environ.get("FEDKEEL_ISA")
    hint = f"; for {best}: {library.how_to_build()}" if better else ""
    yield Finding("native kernels", "warning" if better else "ok", f"{loaded.isa} ({what}){hint}", values)


def _compiler() -> Iterator[Finding]:
    """The one that an installation would use."""
    given = shlex.split(os.environ.get("CXX", ""))
    command = given or [name for name in ("c++", "g++", "clang++") if shutil.which(name)][:1]
    if not command:
        told = "none found (c++, g++, clang++, $CXX); one is needed to build the native kernels"
        yield Finding("C++ compiler", "optional", told, {"command": None})
        return
    values = {"command": shlex.join(command)}
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=10, check=False)
        said = done.stdout.partition("\n")[0] if not done.returncode else f"it ended with code {done.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("C++ compiler", "warning", f"{shlex.join(command)} cannot be used ({words(error)})", values)
        return
    yield Finding("C++ compiler", "warning" if done.returncode else "ok", f"{shlex.join(command)}: {said}", values)


def _workers() -> Iterator[Finding]:
    from fedkeel.local.executors.processes import unavailable

    why = unavailable()
    told = f"cannot be started: {why}" if why else "can be started"
    yield Finding("worker processes", "warning" if why else "ok", told, {"possible": why is None})


def _cache() -> Iterator[Finding]:
    from fedkeel.data.cache import cache_folder
    from fedkeel.data.datasets.registry import ENTRIES
    from fedkeel.data.sources.layout import find

    folder = cache_folder()
    names = [entry.name for entry in ENTRIES.values() if entry.home is None and find(entry.root, entry.layouts)]
    size, writable = _size(folder), _writable(folder)
    told = f"{folder}, {size / 1e6:,.1f} MB: {_list(names, 'no data sets')}"
    values = {"path": str(folder), "bytes": size, "data_sets": names, "writable": writable}
    if not writable:
        told += "; it cannot be written to, so set FEDKEEL_DATA to another folder to get more data sets"
    yield Finding("data cache", "ok" if writable else "warning", told, values)
    choices = folder / "executors"
    count = len([*choices.glob("*.json")])
    values = {"path": str(choices), "count": count, "writable": writable}
    yield Finding("executor choices", "ok", f"{choices}, {_many(count, 'choice')} remembered", values)


def _extras() -> Iterator[Finding]:
    for name in EXTRAS:
        version = _version(name)
        yield Finding(name, "ok" if version else "optional", version or "not installed", {"version": version})


CHECKS: dict[str, Callable[[], Iterable[Finding]]] = {
    "Python": _python,
    "fedkeel": _fedkeel,
    "torch": _torch,
    "machine": _machine,
    "native kernels": _native,
    "C++ compiler": _compiler,
    "worker processes": _workers,
    "data cache": _cache,
    "extras": _extras,
}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _writable(folder: Path) -> bool:
    """Whether it can be written, or made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _size(folder: Path) -> int:
    """Bytes of the files below, or of the first of very many."""
    size = count = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(path, name)).st_size
            except OSError:  # it went away
                continue
        count += len(names)
        if count > MOST_FILES:
            break
    return size


def _list(names: Iterable[str], none: str = "none") -> str:
    return ", ".join(names) or none


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
