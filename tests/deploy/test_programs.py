"""Command lines of Flower's programs and of ours, and their environment."""

from __future__ import annotations

import os
import socket
import sys
import tomllib
from pathlib import Path

import pytest

from fedkeel.deploy import programs
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.programs import Link
from fedkeel.errors import InputError


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "program", lambda name: name)


def after(words: tuple[str, ...], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_superlink_is_encrypted_and_asks_for_keys(tmp_path: Path) -> None:
    words = Link("0.0.0.0", 8110, Keys(tmp_path)).superlink(tmp_path / "db", tmp_path / "secret")
    assert words[0] == "flower-superlink"
    assert (after(words, "--host"), after(words, "--port")) == ("0.0.0.0", "8110")
    assert after(words, "--isolation") == "process"
    assert after(words, "--database") == str(tmp_path / "db")
    assert after(words, "--ssl-certfile") == str(tmp_path / "server.crt")
    assert after(words, "--ssl-keyfile") == str(tmp_path / "server.key")
    assert after(words, "--ssl-ca-certfile") == str(tmp_path / "ca.crt")
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= {*words}
    assert "--insecure" not in words


def test_without_keys_nothing_is_encrypted(tmp_path: Path) -> None:
    link = Link("127.0.0.1", 8110, None)
    for words in (
        link.superlink(tmp_path / "db", tmp_path / "secret"),
        link.superexec(tmp_path / "secret"),
        programs.supernode("h:1", None, None, link, tmp_path / "secret", tmp_path / "s", tmp_path / "log"),
    ):
        assert "--insecure" in words
        assert not [word for word in words if "ssl" in word or "certificates" in word or "private-key" in word]
    assert tomllib.loads(link.configuration())["superlink"]["deployment"] == {
        "address": "127.0.0.1:8110", "insecure": True,
    }  # fmt: skip


def test_this_machine_reaches_a_server_that_listens_everywhere(tmp_path: Path) -> None:
    link = Link("0.0.0.0", 8110, Keys(tmp_path))
    assert after(link.superexec(tmp_path), "--runtime-api-address") == "127.0.0.1:8110"
    assert tomllib.loads(link.configuration())["superlink"]["deployment"] == {
        "address": "127.0.0.1:8110", "root-certificates": str(tmp_path / "ca.crt"),
    }  # fmt: skip


def test_a_node_has_its_key_its_port_and_its_silo(tmp_path: Path) -> None:
    ca, key, log, secret = (tmp_path / name for name in ("ca.crt", "key", "log", "secret"))
    tasks = Link("127.0.0.1", 9190, Keys(tmp_path / "own"))
    words = programs.supernode("h:1", ca, key, tasks, secret, Path("/run/silo"), log)
    assert words.index("flower-supernode") == words.index("--") + 1
    assert words[:3] == (sys.executable, "-m", "fedkeel.world.flower.again")
    assert (after(words, "--key"), after(words, "--log")) == (str(key), str(log))
    words = words[words.index("--") + 1 :]
    assert after(words, "--superlink") == "h:1"
    assert after(words, "--root-certificates") == str(tmp_path / "ca.crt")
    assert after(words, "--auth-supernode-private-key") == str(tmp_path / "key")
    assert (after(words, "--port"), after(words, "--node-config")) == ("9190", 'silo="/run/silo"')
    assert after(words, "--isolation") == "process"
    assert after(words, "--ssl-certfile") == str(tmp_path / "own" / "server.crt")
    assert after(words, "--superexec-auth-secret-file") == str(secret)
    words = tasks.superexec(secret)
    assert words[:4] == (sys.executable, "-m", "fedkeel.world.flower.superexec", "flower-superexec")
    assert after(words, "--root-certificates") == str(tmp_path / "own" / "ca.crt")
    assert after(words, "--superexec-auth-secret-file") == str(secret)


def test_a_silo_gets_data_only_where_there_are_some(tmp_path: Path) -> None:
    words = programs.silo(tmp_path, "north", Path("/s"), tmp_path / "state", None)
    assert words[:3] == (sys.executable, "-m", "fedkeel.deploy.service")
    assert (after(words, "--site"), after(words, "--socket")) == ("north", "/s")
    assert "--data" not in words
    assert after(programs.silo(tmp_path, "n", Path("/s"), tmp_path, Path("/d")), "--data") == "/d"


@pytest.mark.parametrize("name", ['/a "b"', "/\\\\x", "/größe/\U0001f600", "/a\x7fb\n"])
def test_the_run_gets_the_two_folders_whatever_their_names(name: str) -> None:
    told = tomllib.loads(programs.run_config(Path(name), Path("/r"), True, 3))
    assert told == {"app": name, "out": "/r", "interrupts": True, "started": 3}
    assert after(programs.begin(Path("/a"), Path("/c.toml")), "--run-config") == "/c.toml"


def test_nothing_is_reported_and_flower_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "/x"]))
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    found = programs.environment(tmp_path)
    assert (found["FLWR_TELEMETRY_ENABLED"], found["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert found["FLWR_HOME"] == str(tmp_path)
    assert found["PYTHONPATH"] == os.pathsep.join([str(Path("src").absolute()), "/x"])
    assert {"example.org", "127.0.0.1"} <= {*found["NO_PROXY"].split(",")}
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_without_flower_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(InputError, match=r"^fedkeel deploy needs Flower; run pip install 'fedkeel\[flower\]'$"):
        programs.program("flower-superlink")


@pytest.mark.parametrize("address", ["host", "host:", ":80", "host:0", "host:x", "host:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="superlink must be HOST:PORT"):
        programs.split(address)


def test_addresses_of_both_kinds() -> None:
    assert programs.split("h.org:80") == ("h.org", 80)
    assert programs.split("[::1]:80") == ("::1", 80)
    assert programs.joined("::1", 80) == "[::1]:80"


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert programs.listens(f"127.0.0.1:{port}")
        with pytest.raises(InputError, match=rf"port {port} of 127\.0\.0\.1 cannot be used .* give another --port"):
            programs.check_free("127.0.0.1", port)
    assert not programs.listens(f"127.0.0.1:{port}")
    programs.check_free("127.0.0.1", programs.free_port())
