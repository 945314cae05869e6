"""Commands with arguments that make no sense, streams that are gone, and people who press Ctrl-C."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedkeel import InputError
from fedkeel.cli import show, stdio
from fedkeel.config import usercode
from tests.helpers import mutations
from tests.helpers.commands import fedkeel, interrupted
from tests.helpers.report_folders import write

QUICK = ["dataset.train_limit=60", "dataset.test_limit=20", "model=linear", "clients=5", "rounds=1", "executor=serial"]
START = "from fedkeel.cli import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "run").mkdir()
    write(folder / "run")
    (folder / "e.yaml").write_text("clients: 7\n")
    (folder / "broken.yaml").write_text("clients: [")
    (folder / "file").write_text("x")
    return folder


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: Path, *_: object) -> None:
        raise InputError(f"{root.name}: nothing is fetched here")

    monkeypatch.setattr("fedkeel.data.cache._fetch_from_first", refuse)
    monkeypatch.setattr("fedkeel.runner.memory.free_bytes", lambda: 10**9)


def ends_well(folder: Path, *arguments: str) -> None:
    """With an exit code that means something, and never a traceback."""
    given = [a for a in arguments if "\0" not in a and a != "--debug"]  # no shell can hand over a NUL
    done = fedkeel(*given, cwd=folder, env={"FEDKEEL_DATA": str(folder / "cache")})
    assert done.returncode in (0, 1, 2, 3), done
    assert "Traceback" not in done.stderr, done
    assert "(an error in fedkeel" not in done.stderr, done
    assert done.returncode == 0 or "fedkeel: " in done.stderr or "Usage" in done.stdout, done


words = st.one_of(
    st.sampled_from(["run", "show", "list", "plot", "data", "fleet", "get", "-h", "--help", "--version", "--", "-", "",
                     "--out", "--set", "--what", "--x", "--first", "--json", "--partition", "--nothing", "e.yaml",
                     "broken.yaml", "missing.yaml", "file", "file/below", "x.jpg", "x" * 300, "nan", "-1", "1e999",
                     "\udcff", "[bold]x[/]", "mnist", "fashion-mnist-mini", "models", "algorithms"]),
    mutations.overrides.filter(bool).map(lambda given: given[0]),
    st.text(max_size=10),
)  # fmt: skip
COMMANDS = [["show"], ["list"], ["list", "models"], ["plot", "run"], ["data", "get"], ["data", "show"],
            ["new"], ["new", "method"], ["fleet", "show"], ["data"], ["fleet"], []]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(command=st.sampled_from(COMMANDS), arguments=st.lists(words, max_size=4))
@example(command=["show"], arguments=["--set"])
@example(command=["show"], arguments=["", ""])
@example(command=["show"], arguments=["name=[bold]x[/]"])
@example(command=["plot"], arguments=["run", "--what", "timeline", "--first", "nan"])
@example(command=["plot"], arguments=["run", "--out", "file/below.png"])
@example(command=["plot"], arguments=["run", "--out", "x" * 300 + ".png"])
@example(command=["plot"], arguments=["run", "--out", "\udcff.png"])
@example(command=["data", "show"], arguments=["fashion-mnist-mini", "--out", "x" * 300])
@example(command=["data", "get"], arguments=["../mnist"])
def test_any_arguments(folder: Path, command: list[str], arguments: list[str]) -> None:
    ends_well(folder, *command, *arguments)


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(overrides=mutations.combinations())
def test_looking_at_any_combination(folder: Path, overrides: list[str]) -> None:
    ends_well(folder, "fleet", "show", *overrides, "--out", "fleet.png")
    ends_well(folder, "data", "show", "fashion-mnist-mini", *overrides, "--out", "data.png")


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(arguments=st.lists(words.filter(lambda word: word != "--version"), max_size=3))
def test_runs_with_any_arguments(folder: Path, arguments: list[str]) -> None:
    ends_well(folder, "run", *QUICK, *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list"], "fedkeel: Missing argument"),
        (["list", "things"], "fedkeel: Invalid value"),
        (["show", "--nothing"], "fedkeel: there is no option --nothing; settings are given as --set"),
        (["nothing"], "fedkeel: there is no command nothing; choose from run, compare, "),
        (["plot", "run", "--first", "x"], "fedkeel: Invalid value"),
        (["plot", "file"], "fedkeel: run folder file holds no run; name a folder that fedkeel run has made"),
        (["show", "\udcff"], "No such file"),
    ],
)
def test_usage_is_told_in_one_line(folder: Path, arguments: list[str], said: str) -> None:
    done = fedkeel(*arguments, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "fedkeel: interrupted\n"),
        (MemoryError(), 1, "fedkeel: there is not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            1,
            "fedkeel: there is not enough memory",
        ),
        (OSError(28, "No space left on device"), 1, "fedkeel: [Errno 28] No space left on device (run again"),
        (BrokenPipeError(32, "Broken pipe"), 1, "fedkeel: [Errno 32] Broken pipe"),  # of a worker, not of the reader
        (ZeroDivisionError("a\nb"), 1, "fedkeel: ZeroDivisionError: a b (an error in fedkeel); add --debug"),
    ],
)
def test_whatever_goes_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr(show, "_catalogue", Mock(side_effect=error))
    monkeypatch.setattr(usercode, "FOUND", set())
    for arguments in (["list", "models"], ["list", "models", "--json"]):
        done = fedkeel(*arguments, cwd=folder)
        assert done.returncode == code
        assert done.stderr.startswith(said)
        assert done.stderr.count("\n") == 1


def in_a_shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    start = f"'{sys.executable}' -c '{START}'"
    return subprocess.run(
        ["bash", "-c", line.replace("fedkeel", start)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("fedkeel --version > /dev/full", 1, "fedkeel: [Errno 28] No space left on device"),
        ("fedkeel nothing > /dev/full", 2, "fedkeel: there is no command nothing; choose from"),
        ("fedkeel nothing 2> /dev/full", 2, ""),
        ("fedkeel --version >&- && fedkeel nothing <&- 2>&- >&-", 2, ""),
        ("fedkeel nothing$'\\xff'", 2, "fedkeel: there is no command nothing\\udcff; choose from"),
    ],
)
def test_streams_that_are_gone(tmp_path: Path, line: str, code: int, said: str) -> None:
    done = in_a_shell(line, tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


@pytest.mark.slow
def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    done = in_a_shell("set -o pipefail; fedkeel --help | true", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_is_gone() -> None:
    read, write_end = os.pipe()
    kept = os.dup(1)
    os.dup2(write_end, 1)
    try:
        assert not stdio.reader_gone()
        os.close(read)
        assert stdio.reader_gone()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(write_end)


@pytest.mark.slow
def test_an_interrupt_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\ndef data():\n    pathlib.Path('ready').write_text('yes')\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", START, "data", "show", "slow:data"]
    assert interrupted(command, tmp_path, tmp_path / "ready") == (130, "fedkeel: interrupted\n")
