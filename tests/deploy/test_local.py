"""A whole deployment on this machine, with real processes of Flower, certificates and keys."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedkeel.cli import deploy as command
from fedkeel.deploy import guard, local, programs
from fedkeel.deploy.local import Local, free_folder, run_local
from fedkeel.deploy.node import Node
from fedkeel.deploy.settings import DeploySettings
from fedkeel.deploy.supervisor import Supervisor
from fedkeel.errors import InputError
from tests.helpers import greeting
from tests.helpers.repository import ROOT


def wait(so: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end
        time.sleep(0.1)


def names(out: Path) -> list[str]:
    found: list[str] = json.loads((out / "summary.json").read_text())["names"]
    return found


@pytest.mark.extras
def test_the_run_survives_the_end_of_every_process_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server function kills itself; then the SuperLink is killed."""
    pytest.importorskip("flwr")
    monkeypatch.setattr(programs, "silo", greeting.silo)
    greeting.new_app(tmp_path / "app", 2, ', "kills": 1')
    told: list[str] = []

    def tell(sentence: str) -> None:
        told.append(sentence)
        if sentence == "start 2":
            (link,) = [each for each in guard.marked("", "flower-superlink") if _below(each, tmp_path)]
            os.kill(link, signal.SIGKILL)

    run_local(Local(tmp_path / "app", tmp_path / "run"), tell)
    assert names(tmp_path / "run") == ["site-1", "site-2"]
    assert (tmp_path / "run" / "starts").read_text() == "2"
    assert [each for each in told if "Flower's superlink has ended (it was ended by SIGKILL" in each]
    assert not greeting.left(tmp_path)


def _below(process: int, folder: Path) -> bool:
    return str(folder).encode() in Path(f"/proc/{process}/cmdline").read_bytes()


@pytest.mark.extras
def test_a_killed_command_leaves_no_process_and_is_resumed(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    app, out = tmp_path / "app", tmp_path / "run"
    greeting.new_app(app, 1, ', "stays": true')
    command = [sys.executable, "-c", greeting.COMMAND, "deploy", "local", str(app), "--out", str(out)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as running:
        wait((out / "starts").exists, 90)
        assert len(greeting.left(tmp_path)) > 5
        running.kill()
    wait(lambda: not greeting.left(tmp_path), 20)
    (app / "plan.json").write_text('{"nodes": 1}')
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert names(out) == ["site-1"]
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, "is complete: nothing is left to do" in again.stderr) == (0, True)
    assert not greeting.left(tmp_path)


@pytest.mark.extras
def test_an_error_of_the_server_function_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setattr(programs, "silo", greeting.silo)
    greeting.new_app(tmp_path / "app", 1, ', "wrong": "rounds must be odd; got 4"')
    with pytest.raises(InputError, match=r"^rounds must be odd; got 4$"):
        run_local(Local(tmp_path / "app", tmp_path / "run", secure=False), print)
    assert not greeting.left(tmp_path)


@pytest.mark.extras
def test_what_is_wrong_at_a_site_is_told_in_the_same_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    said = "site-1 cannot do what the server asks for: there is no such file"
    code = f"print('fedkeel: {said}\\nready', flush=True); import time; time.sleep(600)"
    monkeypatch.setattr(programs, "silo", lambda *_: (sys.executable, "-c", code))

    class Failing:
        def __init__(self, *_: object) -> None: ...

        def finish(self) -> None:
            raise InputError("too many sites cannot take part")

    def start(supervisor: Supervisor, _: object, nodes: list[Node], *__: object) -> None:
        nodes[0].start_silo()
        supervisor.until(nodes[0].ready, 20, "not ready")

    monkeypatch.setattr(local, "Server", Failing)
    monkeypatch.setattr(local, "_start", start)
    greeting.new_app(tmp_path / "app", 1)
    told: list[str] = []
    with pytest.raises(InputError, match="too many sites"):
        run_local(Local(tmp_path / "app", tmp_path / "run", secure=False), told.append)
    assert told == [said]


def test_as_many_sites_as_there_are_and_are_needed(tmp_path: Path) -> None:
    settings = DeploySettings(sites=("a", "b", "c"), wait_for=2)
    assert Local(tmp_path, tmp_path).sites(settings) == ("a", "b", "c")
    assert Local(tmp_path, tmp_path, 2).sites(settings) == ("a", "b")
    for count in (1, 4):
        with pytest.raises(InputError, match=f"nodes must be from 2 to 3, .* got {count}"):
            Local(tmp_path, tmp_path, count).sites(settings)


def test_data_of_a_site_are_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    (tmp_path / "south.csv").touch()
    wanted = Local(tmp_path, tmp_path, data=tmp_path)
    assert [wanted.data_of(site) for site in ("north", "south")] == [tmp_path / "north", tmp_path / "south.csv"]
    (tmp_path / "south.npz").touch()
    with pytest.raises(InputError, match=r"has 2 paths for south; name one file"):
        wanted.data_of("south")
    with pytest.raises(InputError, match="has nothing for west"):
        wanted.data_of("west")
    with pytest.raises(InputError, match=r"south\.csv is no folder; give a folder"):
        Local(tmp_path, tmp_path, data=tmp_path / "south.csv").data_of("south")
    assert Local(tmp_path, tmp_path).data_of("north") is None


@pytest.mark.parametrize(
    "words",
    [
        ["my app", "--out", "x y/run"],
        ["app", "--out", "run", "--nodes", "3", "--data", "my parts", "--insecure", "--fast"],
    ],
)
def test_the_advice_after_a_stop_is_the_command_that_was_given(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Local] = []
    monkeypatch.setattr(local, "run_local", lambda wanted, _: given.append(wanted))
    monkeypatch.setattr(command, "_shown", lambda *_: nullcontext())
    monkeypatch.setattr(command, "_result", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        command.app(["local", *words], standalone_mode=False)
        _, _, _, *words = shlex.split(given[-1].command)
    assert given[0] == given[1]
    assert (given[0].app, given[0].nodes) == (tmp_path / words[0], 3 if "--nodes" in words else None)


def test_every_trial_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    first = free_folder(tmp_path)
    first.with_name(f"{first.name}.deploy").mkdir(parents=True)
    second = free_folder(tmp_path)
    second.mkdir()
    assert len({first, second, free_folder(tmp_path)}) == 3
