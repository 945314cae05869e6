"""Which native library is loaded, and what is said where none is."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedkeel import InputError
from fedkeel.local.native import library
from tests.helpers.native import compiled, needed

AVX2 = "fpu sse2 avx avx2 fma"
AVX512 = f"{AVX2} avx512f avx512vl avx512dq avx512bw"
SETS = ("base", "avx2", "avx512")
Build = Callable[..., None]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where libraries are looked for, on an x86 processor that has everything."""
    for name in ("FEDKEEL_NATIVE", "FEDKEEL_ISA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library, "FOLDER", tmp_path / "lib")
    (tmp_path / "lib").mkdir()
    processors(tmp_path, monkeypatch, AVX512)
    return tmp_path / "lib"


def processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """A machine with these."""
    path = tmp_path / f"cpuinfo-{len([*tmp_path.iterdir()])}"
    path.write_text("".join(f"processor\t: {i}\nmodel name\t: A\nflags\t\t: {f}\n\n" for i, f in enumerate(flags)))
    monkeypatch.setattr(library, "CPUINFO", path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(
        tmp_path_factory.mktemp("sound") / "lib.so", f'extern "C" int fk_abi(void){{return {library.ABI};}}'
    )


@pytest.fixture
def build(folder: Path, sound: Path) -> Build:
    def copies(names: Sequence[str] = SETS, source: Path = sound) -> None:
        for name in names:
            shutil.copy(source, folder / f"libfedkeel-{name}.so")

    return copies


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    return compiled(tmp_path / "stale.so", 'extern "C" int fk_abi(void) { return 99; }')


def isa() -> str:
    found = library.load()
    assert found is not None
    assert found.handle.fk_abi() == library.ABI
    assert found.path.name == f"libfedkeel-{found.isa}.so"
    return found.isa


# Which one.


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ([AVX512], "avx512"),
        ([AVX2], "avx2"),
        ([AVX512, AVX2], "avx2"),  # unequal cores
        ([AVX2.replace("fma", "")], "base"),
        ([AVX512.replace("avx512bw", "avx512_vnni")], "avx2"),
        ([""], "base"),
        ([], "base"),
    ],
)
def test_the_best_that_every_core_can_run(
    flags: list[str], best: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build()
    processors(tmp_path, monkeypatch, *flags)
    assert isa() == best
    assert library.absence() is None
    assert library.offered() == library.usable() == SETS[: SETS.index(best) + 1][::-1]


def test_a_system_that_tells_nothing_gets_the_least(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(library, "CPUINFO", Path("/nowhere"))
    assert isa() == "base"


@pytest.mark.parametrize(("machine", "name"), [("aarch64", "neon"), ("arm64", "neon"), ("riscv64", "base")])
def test_other_processors(machine: str, name: str, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    build([name])
    assert isa() == name


def test_what_was_not_built_is_passed_over(build: Build) -> None:
    build(["base", "avx2"])
    assert isa() == "avx2"
    assert library.built() == library.usable() == ("avx2", "base")


def test_it_is_loaded_once(build: Build) -> None:
    build()
    assert library.load() is library.load()


# FEDKEEL_ISA.


@pytest.mark.parametrize("name", SETS)
def test_one_can_be_forced(name: str, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setenv("FEDKEEL_ISA", name)
    assert isa() == name


@pytest.mark.parametrize("name", ["avx512", "neon"])
def test_one_that_the_processor_lacks_is_refused(
    name: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build([*SETS, "neon"])
    processors(tmp_path, monkeypatch, AVX2)
    monkeypatch.setenv("FEDKEEL_ISA", name)
    for ask in (library.load, library.absence):
        with pytest.raises(InputError) as error:
            ask()
        assert str(error.value) == (f"FEDKEEL_ISA={name} is not supported by this processor; use one of avx2, base")


def test_one_that_was_not_built_is_refused(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build(["base"])
    monkeypatch.setenv("FEDKEEL_ISA", "avx2")
    with pytest.raises(InputError, match=r"^FEDKEEL_ISA=avx2 was not built; use one of base$"):
        library.load()


def test_a_word_that_is_no_instruction_set_is_refused(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setenv("FEDKEEL_ISA", "sse9")
    with pytest.raises(InputError, match=r"^FEDKEEL_ISA must be one of avx512, avx2, base; got 'sse9'$"):
        library.load()


def test_a_forced_one_without_any_library_is_just_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_ISA", "avx2")
    assert library.load() is None
    assert "they were not built" in str(library.absence())


# FEDKEEL_NATIVE.


def test_no_is_as_if_there_were_none(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    monkeypatch.setenv("FEDKEEL_ISA", "neon")  # nobody looks at it
    assert library.load() is None
    assert library.absence() == "native kernels are switched off by FEDKEEL_NATIVE=no"
    monkeypatch.delenv("FEDKEEL_ISA")
    monkeypatch.setenv("FEDKEEL_NATIVE", "auto")
    assert isa() == "avx512"


def test_required_and_there(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    assert isa() == "avx512"


def test_required_and_absent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "absent.txt").write_text("no C++ compiler was found when fedkeel was installed\n")
    assert library.load() is None
    why = library.absence()
    assert why is not None
    assert why.startswith(
        "there are no native kernels: no C++ compiler was found when fedkeel was installed; with a C++ compiler, run "
        "make native in /"
    )
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    with pytest.raises(InputError) as error:
        library.load()
    assert str(error.value) == f"FEDKEEL_NATIVE=require cannot be met: {why}"
    assert library.absence() == why


def test_a_word_that_is_no_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_NATIVE", "yes")
    for ask in (library.load, library.absence):
        with pytest.raises(InputError, match=r"^FEDKEEL_NATIVE must be one of auto, require, no; got 'yes'$"):
            ask()


# Libraries that cannot be used.


def test_one_of_another_version_is_refused(
    folder: Path, build: Build, stale: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(source=stale)
    assert library.load() is None
    assert str(library.absence()).startswith(
        f"the native library {folder / 'libfedkeel-avx512.so'} is of another version of fedkeel (its interface is 99, "
        f"not {library.ABI}); with a C++ compiler, run make native in "
    )
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    with pytest.raises(InputError, match="is of another version of fedkeel"):
        library.load()


def test_garbage_is_told(folder: Path) -> None:
    (folder / "libfedkeel-avx2.so").write_bytes(b"\x7fELF and nothing else")
    (folder / "libfedkeel-base.so").touch()
    assert library.load() is None
    assert str(library.absence()).startswith(f"the native library {folder / 'libfedkeel-avx2.so'} cannot be loaded (")


def test_a_library_of_something_else_is_told(folder: Path) -> None:
    compiled(folder / "libfedkeel-base.so", 'extern "C" int other(void) { return 1; }')
    assert library.load() is None
    assert "libfedkeel-base.so is not fedkeel's; with" in str(library.absence())


def test_a_sound_one_is_used_where_a_better_one_is_not(folder: Path, build: Build, stale: Path) -> None:
    build(["base"])
    build(["avx2"], stale)
    (folder / "libfedkeel-avx512.so").write_text("garbage")
    assert isa() == "base"


def test_what_to_do_without_a_working_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "site-packages/fedkeel/local/native/library.py"))
    assert library.how_to_build() == (
        "with a C++ compiler, install fedkeel again with pip install --no-cache-dir --force-reinstall --no-deps"
    )


def test_it_needs_no_torch() -> None:
    program = "import sys, fedkeel.local.native.library as l; l.absence(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_library_of_this_tree_is_this_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert needed().handle.fk_abi() == library.ABI
