"""A site's command: what it refuses, which processes it starts, and what it says when they end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedkeel.deploy import guard, node, programs, project
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.node import NodeOptions as Options
from fedkeel.deploy.node import enroll, run_node
from fedkeel.deploy.process import Restarts
from fedkeel.errors import FedkeelError, InputError, StoppedError

SLEEPER = "print('ready\\nconnected as node 1', flush=True); import time; time.sleep(600)"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(programs, "program", lambda name: name)
    project.new(tmp_path / "app", nodes=1)
    keys = Keys(tmp_path / "app" / "keys")
    keys.make([])
    private, _ = enroll("site-1", tmp_path / "mine")
    return Options(tmp_path / "app", "site-1", "127.0.0.1:9", keys.ca, private, state=tmp_path / "state")


def changed(site: Options, **other: object) -> Options:
    return Options(**{**vars(site), **other})  # type: ignore[arg-type]


def test_what_cannot_work_is_refused_before_anything_starts(site: Options, tmp_path: Path) -> None:
    (tmp_path / "open").write_bytes(site.key.read_bytes() if site.key else b"")
    (tmp_path / "open").chmod(0o644)
    for other, told in (
        ({"name": "site-2"}, "not a site of deploy.yaml"),
        ({"superlink": "host"}, "superlink must be HOST:PORT"),
        ({"key": None}, "--key is missing; give the private key"),
        ({"key": site.ca}, "is no private key of a site"),
        ({"key": tmp_path / "open"}, "can be read by others"),
        ({"ca": site.key}, "is no certificate"),
        ({"ca": tmp_path / "missing.crt"}, r"missing\.crt cannot be read"),
        ({"data": tmp_path / "none"}, "--data: .* does not exist"),
        ({"app": tmp_path}, "is not the folder of a deployment"),
    ):
        with pytest.raises(InputError, match=told):
            run_node(changed(site, **other), print)
    assert not site.folder.exists()


def test_keys_of_a_site_are_never_overwritten(tmp_path: Path) -> None:
    private, public = enroll("north", tmp_path)
    before = private.read_bytes(), public.read_bytes()
    with pytest.raises(InputError, match="not overwritten; move it away"):
        enroll("north", tmp_path)
    assert (private.read_bytes(), public.read_bytes()) == before
    with pytest.raises(InputError, match="site must be 1 to 63 letters"):
        enroll("../x", tmp_path)


def pretend(monkeypatch: pytest.MonkeyPatch, silo: str = SLEEPER, supernode: str = SLEEPER) -> None:
    monkeypatch.setattr(programs, "silo", lambda *_: (sys.executable, "-c", silo, "silo"))
    monkeypatch.setattr(programs, "supernode", lambda *_: (sys.executable, "-c", supernode, "node"))
    monkeypatch.setattr(programs.Link, "superexec", lambda *_: (sys.executable, "-c", SLEEPER, "superexec"))


def test_wrong_data_are_told_in_the_words_of_the_silo(site: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, silo="print('fedkeel: data.csv has no column y; name another one'); raise SystemExit(2)")
    with pytest.raises(InputError, match=r"^data\.csv has no column y; name another one$"):
        run_node(site, print)


def test_a_node_that_is_refused_for_long_is_told_what_to_check(site: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, supernode="print('Exit Code: 305\\nmore'); raise SystemExit(1)")
    monkeypatch.setattr(node, "NODE", Restarts(first=0.01, most=2))
    told: list[str] = []
    with pytest.raises(FedkeelError, match=r"refused by the server, .* check that the server has the public key"):
        run_node(site, told.append)
    told = [each for each in told if "check that the server has the public key" in each]
    assert ["that the clock here is right" in each for each in told] == [True, True]


def test_what_a_node_tries_again_for_is_told(site: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "2026-11-18 03:45:17,349 no way; trying again\\nof no interest"
    pretend(monkeypatch, supernode=f"print('{lines}', flush=True); import time; time.sleep(1); raise SystemExit(2)")
    told: list[str] = []
    with pytest.raises(FedkeelError):
        run_node(site, told.append)
    assert told == ["the silo of site-1 is ready; its node connects with 127.0.0.1:9", "no way; trying again"]


def test_a_refusal_of_a_minute_is_waited_for() -> None:
    pauses = [node.NODE.pause(ends) for ends in range(1, node.NODE.most + 1)]
    assert 70 < sum(pauses) < node.NODE.within


def test_all_processes_are_started_again_and_stopped(
    site: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(node, "SILO", Restarts(first=0.01))
    monkeypatch.setattr(node, "NODE", Restarts(first=0.01))
    told: list[str] = []

    def ours() -> list[int]:
        mine = f"FLWR_HOME={tmp_path}".encode()
        return [each for each in guard.marked("") if mine in guard._read(str(each), "environ")]

    def attack() -> None:
        try:
            kill_all()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def kill_all() -> None:
        for _ in range(400):
            if "site-1 is connected with 127.0.0.1:9; Ctrl-C stops it" in told and len(ours()) == 3:
                break
            time.sleep(0.05)
        first = ours()
        for each in first:
            os.kill(each, signal.SIGKILL)
        for _ in range(400):
            if len(ours()) == 3 and not {*ours()} & {*first}:
                told.append("all are back")
                break
            time.sleep(0.05)

    thread = threading.Thread(target=attack)
    thread.start()
    with pytest.raises(StoppedError, match="the same command takes part again"):
        run_node(site, told.append)
    thread.join()
    assert "all are back" in told
    assert ours() == []
