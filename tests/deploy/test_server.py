"""The server's command: what it refuses before anything is started, and how it goes with a site of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedkeel.deploy import identity, programs, project
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.places import Beside, alone
from fedkeel.deploy.server import Serving, serve
from fedkeel.errors import FedkeelError, InputError
from tests.helpers import greeting
from tests.helpers.repository import ROOT


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two sites, where Flower seems to be installed."""
    pytest.importorskip("cryptography")
    monkeypatch.setattr(programs, "program", lambda name: name)
    project.new(tmp_path / "app", nodes=2)
    return tmp_path / "app"


def refused(wanted: Serving, told: str) -> None:
    with pytest.raises(InputError, match=told):
        serve(wanted, print)
    assert not Beside(wanted.out).folder.exists()


def enrolled(app: Path, *names: str) -> None:
    keys = Keys(app / "keys")
    for name in names:
        identity.make_node(app / name, app / f"{name}.pub")
        keys.add(app / f"{name}.pub", names)


def test_a_folder_that_is_no_deployment_is_refused(tmp_path: Path) -> None:
    refused(Serving(tmp_path, tmp_path / "run"), "is not the folder of a deployment")


def test_certificates_and_keys_must_be_there(app: Path, tmp_path: Path) -> None:
    wanted = Serving(app, tmp_path / "run", port=programs.free_port())
    refused(wanted, r"ca\.crt is missing; make it with fedkeel deploy keys")
    Keys(app / "keys").make([])
    refused(wanted, r"has 0 public keys, and 2 sites are needed; add keys")
    enrolled(app, "site-1")
    refused(wanted, r"has 1 public key, and 2 sites are needed")


def test_the_certificate_must_be_for_the_host(app: Path, tmp_path: Path) -> None:
    Keys(app / "keys").make(["fl.example.org"])
    enrolled(app, "site-1", "site-2")
    refused(Serving(app, tmp_path / "run", "127.0.0.2", programs.free_port()), r"not for 127\.0\.0\.2")


def test_the_certificate_must_be_for_the_name_by_which_the_server_reaches_itself(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of earlier versions are not for ::1."""
    monkeypatch.setattr(programs, "check_free", lambda *_: None)
    with monkeypatch.context() as earlier:
        earlier.setattr(identity, "LOCAL", ("localhost", "127.0.0.1"))
        Keys(app / "keys").make(["fl.example.org"])
    refused(Serving(app, tmp_path / "run", "::"), "not for ::1; move .* --host fl.example.org$")
    refused(Serving(app, tmp_path / "run", "0.0.0.0"), "has 0 public keys")


def test_sites_and_clients_must_agree(app: Path, tmp_path: Path) -> None:
    path = app / "experiment.yaml"
    path.write_text(path.read_text().replace("clients: 2", "clients: 3"))
    refused(Serving(app, tmp_path / "run"), "has clients=3, and deploy.yaml names 2 sites; make them equal")


def test_a_folder_with_something_else_is_refused(app: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    refused(Serving(app, tmp_path / "run"), "is not empty")


def test_a_complete_run_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "summary.json").touch()
    serve(Serving(tmp_path / "none", tmp_path), print)


def test_what_belongs_to_a_run_is_private_and_kept(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "run")
    beside.make()
    secret = beside.secret.read_bytes()
    beside.make()
    assert beside.secret.read_bytes() == secret
    assert len(secret) >= 32
    assert beside.folder.stat().st_mode & 0o777 == 0o700


def test_one_process_at_a_time(tmp_path: Path) -> None:
    def twice() -> None:
        with alone(tmp_path, "the run"), alone(tmp_path, "the run"):
            pass

    with pytest.raises(FedkeelError, match="the run is in use; wait"):
        twice()
    with alone(tmp_path, "the run"):
        pass


@pytest.mark.extras
def test_a_server_and_a_site_that_are_commands_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    here = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    greeting.new_app(tmp_path / "app", 1)

    def command(*words: str) -> list[str]:
        return [sys.executable, "-c", greeting.COMMAND, *words]

    def do(*words: str) -> str:
        done = subprocess.run(command(*words), cwd=tmp_path, env=here, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    do("deploy", "keys", "app", "--host", "fl.example.org")
    assert "fedkeel deploy keys APP --add site-1.pub" in do("node", "enroll", "--site", "site-1", "--out", "mine")
    assert "1 of 1 sites have a key\n" in do("deploy", "keys", "app", "--add", "mine/site-1.pub")
    port = str(programs.free_port())
    near = ["--superlink", f"127.0.0.1:{port}", "--ca", "app/keys/ca.crt", "--key", "mine/site-1"]
    node = subprocess.Popen(
        command("node", "run", "app", "--site", "site-1", *near), cwd=tmp_path, env=here, stderr=subprocess.PIPE
    )
    try:
        done = subprocess.run(
            command("deploy", "server", "app", "--out", "run", "--host", "0.0.0.0", "--port", port),
            cwd=tmp_path, env=here, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"names": ["site-1"]}
        assert "the server listens on 0.0.0.0" in done.stderr
        assert node.poll() is None
        node.send_signal(signal.SIGTERM)
        _, said = node.communicate(timeout=60)
        assert (node.returncode, b"stopped; the same command takes part again" in said) == (143, True)
    finally:
        node.kill()
        node.wait()
    assert (tmp_path / "app" / "state" / "site-1" / "logs" / "node.log").is_file()
    end = time.monotonic() + 20
    while greeting.left(tmp_path):
        assert time.monotonic() < end
        time.sleep(0.1)
