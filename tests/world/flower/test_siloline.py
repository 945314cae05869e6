"""A node's line to its silo, which may die and come back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedkeel.world.flower import siloline
from fedkeel.world.remote import envelope
from tests.helpers.flower import Silo, short_folder, until

pytestmark = pytest.mark.extras

DYING = """
import os, signal, socket, sys, time
from fedkeel.world.remote import envelope
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen(1)
line, _ = server.accept()
envelope.receive(line, 1000)
if os.fork() == 0:  # a worker of the silo, which holds the connection open
    print(os.getpid(), flush=True)
    time.sleep(60)
os.unlink(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path() -> Iterator[str]:
    with short_folder() as folder:
        yield str(folder / "silo")


def why(answer: bytes) -> str:
    told = envelope.facts(answer)
    assert told["kind"] == envelope.FAILED
    return str(told["why"])


def test_a_message_is_answered(path: str) -> None:
    body = envelope.plain("hello") + bytes(3_000_000)  # more than the socket takes at once
    silo = Silo(path, lambda got: got[::-1]).start()
    assert siloline.ask(path, body) == body[::-1]
    assert silo.got == [body]
    silo.stop()


def test_a_silo_that_starts_late_is_waited_for(path: str) -> None:
    silo = Silo(path, lambda _: b"late")
    starter = threading.Timer(0.5, silo.start)
    starter.start()
    assert siloline.ask(path, b"body") == b"late"
    starter.join()
    silo.stop()


def test_a_silo_that_never_starts_is_told(path: str) -> None:
    assert "cannot be reached" in why(siloline.ask(path, b"body", connect=0.3))


def test_a_path_that_cannot_be_is_told_at_once() -> None:
    assert "cannot be reached" in why(siloline.ask("/tmp/" + "x" * 200, b"body", connect=3600))


def test_a_silo_that_dies_gets_the_same_message_again(path: str) -> None:
    def answer(_: bytes) -> bytes:
        if len(silo.got) < siloline.TRIES:
            raise ConnectionError("died")
        return b"at last"

    silo = Silo(path, answer).start()
    assert siloline.ask(path, b"body") == b"at last"
    assert silo.got == [b"body"] * siloline.TRIES
    silo.stop()


def test_a_message_that_kills_every_silo_is_given_up(path: str) -> None:
    def answer(_: bytes) -> bytes:
        raise ConnectionError("died")

    silo = Silo(path, answer).start()
    assert "ended 3 times" in why(siloline.ask(path, b"body"))
    assert len(silo.got) == 3
    silo.stop()


def test_an_answer_that_is_too_large_is_told(path: str) -> None:
    silo = Silo(path, lambda _: bytes(101)).start()
    assert "it has 101 bytes; at most 100 are allowed" in why(siloline.ask(path, b"body", most=100))
    assert len(silo.got) == 1  # to ask again would not help
    silo.stop()


def test_a_killed_process_is_noticed_even_if_its_child_holds_the_connection(path: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", DYING, path], stdout=subprocess.PIPE)
    silo = Silo(path, lambda _: b"of the next one")
    child = 0
    try:
        until(lambda: Path(path).exists(), 30)
        answers: list[bytes] = []
        asking = threading.Thread(target=lambda: answers.append(siloline.ask(path, b"body")), daemon=True)
        asking.start()
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait(timeout=30)
        silo.start()
        asking.join(30)
        assert answers == [b"of the next one"]
        os.kill(child, 0)  # it still lives
    finally:
        process.kill()
        process.wait()
        if child:
            os.kill(child, signal.SIGKILL)
        silo.stop()


def test_an_answer_may_take_long(path: str) -> None:
    def answer(_: bytes) -> bytes:
        time.sleep(1.0)
        return b"done"

    silo = Silo(path, answer).start()
    assert siloline.ask(path, b"body", connect=0.2) == b"done"
    silo.stop()


def test_a_silo_that_never_answers_is_not_waited_for_when_the_message_is_void(path: str) -> None:
    free = threading.Event()

    def answer(body: bytes) -> bytes:
        free.wait(30)
        return body

    silo = Silo(path, answer).start()
    for body in (b"body", bytes(3_000_000)):
        assert why(siloline.ask(path, body, seconds=0.3)) == "the silo did not answer in time; see its log"
    assert "cannot be reached" in why(siloline.ask(f"{path}-none", b"body", seconds=0.3))
    free.set()
    assert siloline.ask(path, b"body", seconds=30) == b"body"
    silo.stop()


def test_a_silo_that_reads_nothing_is_not_waited_for_either(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)
        assert "in time" in why(siloline.ask(path, bytes(3_000_000), seconds=0.3))
