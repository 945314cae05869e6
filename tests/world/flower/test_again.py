"""A node that was killed says goodbye for its last life."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedkeel.world.flower import again, fleetapi
from fedkeel.world.flower.link import Link

pytestmark = pytest.mark.extras


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (b"\x1b[92mINFO \x1b[0m:      SuperNode ID: 12\n", 12),
        (b"2026 connected as node 3\n2026 stopped\nconnected as node 18446744073709551615\n", 2**64 - 1),
        (b"\xff nothing of interest\n", None),
    ],
)
def test_the_last_number_is_in_the_log(said: bytes, number: int | None, tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    assert again.last_number(log) is None
    log.write_bytes(said)
    assert again.last_number(log) == number


@pytest.mark.parametrize("more", [*range(-60, 60, 7), 3 << 20])
def test_a_number_is_found_however_much_was_written_since(more: int, tmp_path: Path) -> None:
    """Also where it lies across two blocks that are read."""
    log = tmp_path / "node.log"
    log.write_bytes(b"SuperNode ID: 3\nSuperNode ID: 1234567890\n" + bytes(again._BLOCK + more))
    assert again.last_number(log) == 1234567890


@pytest.mark.parametrize("connected", [True, False])
def test_who_was_still_connected_stays_away_for_a_moment(
    connected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    slept: list[float] = []

    class Fleet:
        def __init__(self, link: Link) -> None:
            assert link.key == tmp_path / "key"

        def disconnect(self, number: int) -> bool:
            asked.append(number)
            return connected

    monkeypatch.setattr(fleetapi, "Fleet", Fleet)
    log = tmp_path / "node.log"
    link = Link("h:1", key=tmp_path / "key")
    assert not again.goodbye(link, log, slept.append)
    assert asked == []
    log.write_text("connected as node 5\n")
    assert again.goodbye(link, log, slept.append) is connected
    assert (asked, slept) == ([5], [again.AWAY] if connected else [])
    assert not again.goodbye(Link("h:1", insecure=True), log, slept.append)


def test_it_becomes_the_program(tmp_path: Path) -> None:
    own = [sys.executable, "-m", "fedkeel.world.flower.again", "--superlink", "127.0.0.1:1"]
    program = [sys.executable, "-c", "import sys; print(sys.argv); sys.exit(7)", "--port", "9"]
    command = [*own, "--key", str(tmp_path / "key"), "--log", str(tmp_path / "log"), "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (7, "['-c', '--port', '9']\n")
