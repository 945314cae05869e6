"""The build of the native kernels, `scripts/native.py`, mostly with compilers that only pretend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedkeel.local.native import library
from tests.helpers.native import CLEAN, FAILING, Place, compiler, native, script, tree

OLD = CLEAN + 'case "$*" in *-mavx512f*) rm "$last"; echo "unknown option -mavx512f" >&2; exit 1;; esac\n'
LIBRARIES = ["libfedkeel-avx2.so", "libfedkeel-avx512.so", "libfedkeel-base.so"]


def test_one_library_for_each_instruction_set(place: Place) -> None:
    place.compiler(CLEAN)
    outcome = place.build()
    assert outcome == native.Outcome(["base", "avx2", "avx512"], fresh=True, warning=None)
    assert place.names == ["built.json", *LIBRARIES]
    assert len(place.calls) == 3
    (avx2,) = (call for call in place.calls if "-mavx2" in call)
    assert avx2.split()[:-2] == [*native.FLAGS, "-shared", "-mavx2", "-mfma", str(place.source / "fedkeel.cpp")]


def test_what_is_up_to_date_is_not_compiled_again(place: Place) -> None:
    place.compiler(CLEAN)
    place.build()
    assert not place.build().fresh
    assert len(place.calls) == 3
    (place.lib / "libfedkeel-avx2.so").unlink()
    assert place.build() == native.Outcome(["base", "avx2", "avx512"], fresh=True, warning=None)
    assert len(place.calls) == 4
    for change in ("a header", "the compiler", "the record"):
        before = len(place.calls)
        if change == "a header":
            (place.source / "more.h").write_text("int y;\n")
        elif change == "the compiler":
            place.compiler(CLEAN.replace("1.0", "2.0"))
        else:
            (place.lib / "built.json").write_text("[]")
        assert place.build().fresh, change
        assert len(place.calls) == before + 3
        assert not place.build().fresh, change


def test_a_failing_compiler_leaves_pure_python(place: Place) -> None:
    place.compiler(CLEAN)
    place.build()
    (place.source / "fedkeel.cpp").write_text("int y;\n")
    place.compiler(FAILING)
    outcome = place.build()
    assert outcome.made == []
    assert place.names == ["absent.txt"]  # neither libraries of older sources nor half of one
    assert [*place.lib.glob(".*")] == []
    told = (place.lib / "absent.txt").read_text()
    assert told == f"the C++ compiler ({place.root / 'compiler'}) failed when fedkeel was installed\n"
    assert "no native kernels, so training is slower: " in outcome.warning
    assert "error: boom" in outcome.warning
    place.compiler(CLEAN)
    assert place.build().made == ["base", "avx2", "avx512"]
    assert place.names == ["built.json", *LIBRARIES]


def test_a_failing_compiler_is_an_error_where_kernels_are_required(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.compiler(FAILING)
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    with pytest.raises(native.BuildError, match=r"(?s)failed for base, avx2, avx512: .*fedkeel.cpp:7: error: boom"):
        place.build()


def test_an_older_compiler_gives_what_it_can(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.compiler(CLEAN)
    place.build()
    place.compiler(OLD.replace("1.0", "0.9"))
    outcome = place.build()
    assert outcome.made == ["base", "avx2"]
    assert "failed for avx512: " in outcome.warning
    assert "unknown option -mavx512f" in outcome.warning
    assert place.names == ["built.json", "libfedkeel-avx2.so", "libfedkeel-base.so"]
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    with pytest.raises(native.BuildError, match="unknown option"):
        place.build()


def test_a_compiler_that_is_not_there_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++ -v")
    assert "No such file or directory: '/nowhere/c++'" in place.build().warning
    assert place.names == ["absent.txt"]


def test_without_a_compiler(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place.root))
    assert native.compiler() is None
    outcome = place.build()
    assert outcome.warning == (
        "no native kernels, so training is slower: no C++ compiler was found when fedkeel was installed; install one "
        "(g++ or clang++), or set CXX"
    )
    monkeypatch.setattr(library, "FOLDER", place.lib)
    assert str(library.absence()).startswith(
        "there are no native kernels: no C++ compiler was found when fedkeel was installed; with a C++ compiler, "
    )
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    with pytest.raises(native.BuildError, match=r"^FEDKEEL_NATIVE=require needs a compiler, but no C"):
        place.build()


@pytest.mark.parametrize("name", ["c++", "g++", "clang++"])
def test_compilers_are_looked_for(name: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place.root))
    (place.root / name).write_text(CLEAN)
    (place.root / name).chmod(0o755)
    assert native.compiler() == [name]
    monkeypatch.setenv("CXX", "ccache g++ -v")
    assert native.compiler() == ["ccache", "g++", "-v"]


def test_no_builds_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.compiler(CLEAN)
    monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    assert "FEDKEEL_NATIVE=no was set" in place.build().warning
    assert place.calls == []


def test_other_words_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_NATIVE", "yes")
    with pytest.raises(native.BuildError, match=r"^FEDKEEL_NATIVE must be one of auto, require, no; got 'yes'$"):
        place.build()


def test_machines() -> None:
    sets = script("native").sets
    assert [*sets("x86_64", "Linux")] == ["base", "avx2", "avx512"] == [*library.NEEDS]
    assert [*sets("x86_64", "Darwin")] == ["base"]
    assert [*sets("aarch64", "Linux")] == [*sets("arm64", "Darwin")] == ["neon"]
    assert [*sets("ppc64le", "Linux")] == ["base"]
    assert native.MODES == library.MODES


# The command.


def command(root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if name not in ("CXX", "FEDKEEL_NATIVE")}
    line = [sys.executable, str(root / "scripts" / "native.py")]
    return subprocess.run(line, env={**usual, **env}, capture_output=True, text=True, check=False)


def test_the_command_makes_libraries_that_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler()
    place = tree(tmp_path)
    done = command(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"native kernels: {', '.join(script('native').sets())} in {native.HERE / 'lib'}\n"
    assert command(tmp_path).stdout == ""
    monkeypatch.delenv("FEDKEEL_ISA", raising=False)
    monkeypatch.setenv("FEDKEEL_NATIVE", "require")
    monkeypatch.setattr(library, "FOLDER", place / "lib")
    found = library.load()
    assert found is not None
    assert found.isa == library.offered()[0]
    assert command(tmp_path, FEDKEEL_NATIVE="no").returncode == 0
    assert found.path.exists()  # for the next time


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    tree(tmp_path)
    done = command(tmp_path, CXX="false")
    assert done.returncode == 0
    assert done.stderr.startswith("fedkeel: no native kernels, so training is slower: the C++ compiler (false) failed")
    done = command(tmp_path, CXX="false", FEDKEEL_NATIVE="require")
    assert done.returncode == 1
    assert "it ended with code 1" in done.stderr
    done = command(tmp_path, FEDKEEL_NATIVE="perhaps")
    assert (done.returncode, done.stderr) == (
        1,
        "fedkeel: FEDKEEL_NATIVE must be one of auto, require, no; got 'perhaps'\n",
    )
