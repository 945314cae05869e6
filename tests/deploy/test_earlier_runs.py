"""The server's command where Flower's answers are lost: never two server functions, and every key has its node."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedkeel.deploy import programs, server
from fedkeel.deploy.places import Beside
from fedkeel.deploy.process import Command, Restarts
from fedkeel.deploy.programs import Link
from fedkeel.deploy.server import Server
from fedkeel.deploy.supervisor import Called
from fedkeel.errors import FedkeelError


class Flower:
    """A supervisor whose programs are Flower's, as they answer; the server function is complete at once."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.runs: dict[str, str] = {}
        self.function: str | None = None
        self.ending = 0
        """Looks that find a server function which was stopped."""
        self.said: list[str] = []
        self.fail: list[str] = []
        """Commands that fail next; `run` has done its work then."""
        self.keys: dict[str, int] = {}
        self.refuses = False

    def start(self, command: Command, *_: Any) -> Any:
        self.said.append(f"start {command.name}")
        if command.name.startswith("the log"):
            self._complete()
        return SimpleNamespace(command=command, children=self.children, news=list)

    def _complete(self) -> None:
        self.out.mkdir(exist_ok=True)
        (self.out / "summary.json").touch()
        self.function = None

    def children(self, _: str) -> list[int]:
        if self.function is not None and self.runs[self.function] != "running":
            self.ending -= 1
            self.function = None if self.ending < 0 else self.function
        return [] if self.function is None else [1]

    def tend(self) -> None: ...

    def until(self, ready: Callable[[], bool], _: float, what: str) -> None:
        for _ in range(10):
            if ready():
                return
        raise FedkeelError(what)

    def call(self, commands: Sequence[Sequence[str]], *_: Any) -> list[Called]:
        return [self._called(*words[1:]) for words in commands]

    def _called(self, what: str, *more: str) -> Called:
        if what == "-m":
            return self._register(*more)
        self.said.append(f"flwr {what}")
        answer = getattr(self, f"_{what}")(*more)
        if what in self.fail:
            self.fail.remove(what)
            return Called(1, "Error: the SuperLink cannot be reached")
        return Called(0, answer) if isinstance(answer, str) else answer

    def _run(self, *_: str) -> str:
        assert self.function is None, "two server functions at a time"
        self.function = str(len(self.runs) + 1)
        self.runs[self.function] = "running"
        return json.dumps({"run-id": self.function})

    def _list(self, *_: str) -> str:
        runs = [{"run-id": run, "status": status} for run, status in self.runs.items()]
        return f"Listing all runs...\n{json.dumps({'success': True, 'runs': runs})}"

    def _stop(self, run: str, *_: str) -> str:
        self.runs[run], self.ending = "finished:stopped", 3
        return ""

    def _register(self, *words: str) -> Called:
        publics = [each for each in words if each.endswith(".pub")]
        if self.refuses:
            return Called(1, "a warning\nthe SuperLink refuses: Public key invalid")
        known = {path: self.keys.setdefault(path, 100 + len(self.keys)) for path in publics}
        return Called(0, f"a warning\n{json.dumps(known)}\n")


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flower:
    monkeypatch.setattr(programs, "program", lambda name: name)
    monkeypatch.setattr(programs, "listens", lambda _: True)
    monkeypatch.setattr(server, "AGAIN", Restarts(first=0, most=3))
    monkeypatch.setattr(server, "_LOOK", 0.0)
    return Flower(tmp_path / "run")


def made(flower: Flower) -> Server:
    beside = Beside(flower.out)
    beside.make()
    return Server(flower, Link("127.0.0.1", 1, None), beside, flower.out, False, print)  # type: ignore[arg-type]


@pytest.mark.parametrize("fail", [["run"], ["run", "list"], ["run", "stop"], ["run", "list", "run"]], ids="-".join)
def test_a_run_whose_answer_was_lost_ends_before_the_next_one(flower: Flower, fail: list[str]) -> None:
    flower.fail = fail
    own = made(flower)
    own.start()
    own.finish()
    assert flower.fail == []
    assert [run for run, status in flower.runs.items() if status == "running"] == [str(len(flower.runs))]
    assert flower.said[:3] == ["start Flower's superlink", "start Flower's superexec", "flwr run"]


def test_runs_of_an_earlier_command_end_before_anything_can_start_them(flower: Flower) -> None:
    flower.runs = {"1": "finished:completed", "2": "running"}
    Beside(flower.out).make()
    Beside(flower.out).database.touch()
    own = made(flower)
    own.start()
    own.finish()
    assert flower.said[:5] == [
        "start Flower's superlink", "flwr list", "flwr stop", "start Flower's superexec", "flwr run",
    ]  # fmt: skip


def test_flower_that_never_tells_its_runs_is_given_up(flower: Flower) -> None:
    flower.fail = ["run", *4 * ["list"]]
    own = made(flower)
    own.start()
    with pytest.raises(FedkeelError, match=r"Flower does not tell its runs \(Error: the SuperLink cannot be reached\)"):
        own.finish()
    assert flower.said.count("flwr run") == 1


KEYS = {"north": Path("/k/north.pub"), "south": Path("/k/south.pub")}


def test_keys_that_were_registered_before_have_their_nodes(flower: Flower) -> None:
    """An earlier command was stopped before it could write them down."""
    flower.keys = {str(KEYS["north"]): 7}
    made(flower).admit(KEYS)
    assert Beside(flower.out).nodes() == {"north": 7, "south": 101}


def test_keys_that_flower_refuses_end_the_command(flower: Flower) -> None:
    flower.refuses = True
    with pytest.raises(FedkeelError, match=r"does not take the keys of the sites \(.*Public key invalid\)"):
        made(flower).admit(KEYS)
    assert Beside(flower.out).nodes() == {}


def test_without_keys_nothing_is_asked(flower: Flower) -> None:
    flower.refuses = True
    made(flower).admit({})
