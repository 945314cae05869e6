"""Rounds in which all sites fail: they are repeated, and a run in which nothing works ends in time and says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedkeel.errors import AbsentError
from fedkeel.server import events as ev
from fedkeel.world.remote.limits import LONGEST_PAUSE, Limits
from tests.helpers.scene import LIMITS, Scene

METHODS = ("fedavg", "fedasmu", "fedbuff", "fedent")
Failure = Callable[[int, float], str | None]
"""Why a client fails, at so many seconds of the run; None: it does not. An empty reason: it works, and says nothing."""


class Played:
    """Plays the nodes of a scene until its first round is over."""

    def __init__(self, scene: Scene, failure: Failure) -> None:
        self._scene, self._failure = scene, failure
        self._open: dict[int, str] = {}
        """By client: the kind of the message that it has not answered."""
        self._seen = 0
        self._act()

    def _act(self) -> None:
        scene = self._scene
        for _, node, message in scene.link.sent[self._seen :]:
            self._open[node - 10] = message.kind
        self._seen = len(scene.link.sent)
        for client, kind in [*self._open.items()]:
            why = self._failure(client, scene.remote.now)
            if why:
                scene.link.fail(10 + client, why)
            elif why is None and kind == "train":
                scene.done(client)
            elif why is None:
                ones = {"message/q": torch.ones(1, 1), "message/h": torch.ones(1, 1), "finite": torch.tensor([True])}
                scene.link.answer(10 + client, "answer", {**ones, "loss": torch.ones(1, dtype=torch.float64)})
            if why != "":
                del self._open[client]
        scene.clock.wakes.append((scene.clock.time, self._act))

    def drive(self) -> None:
        scene = self._scene
        scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
        events = scene.events()
        while scene.core.round == 1:
            told = [next(events)]
            while told:
                event = told.pop(0)
                for command in scene.core.on(event):
                    told += [] if isinstance(command, ev.RoundOver) else scene.remote.carry_out(command)
                if isinstance(event, ev.Arrived):
                    scene.remote.taken_in(event.client)


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_round_in_which_all_fail_is_repeated(algorithm: str) -> None:
    scene = Scene(algorithm)
    Played(scene, lambda _, time: "no room" if time < 100 else None).drive()
    assert 100 < scene.remote.now < LIMITS.away
    assert scene.core.ledger.updates == 2
    (line,) = [line for line in scene.lines if "no site can" in line]
    reason = "no room" if algorithm == "fedent" else "failed: no room"  # it asks before it gives out jobs
    assert line == f"no site can do its job (a, b: {reason}); they are asked again for 300 seconds"


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_run_in_which_all_fail_for_long_ends_and_says_why(algorithm: str) -> None:
    scene = Scene(algorithm)
    with pytest.raises(AbsentError, match=r"for 300 seconds \(a: .*no room; b: .*no memory\); mend that, then resume"):
        Played(scene, lambda client, _: ["no room", "no memory"][client]).drive()
    assert LIMITS.away < scene.remote.now < LIMITS.away + 2 * LONGEST_PAUSE
    assert scene.core.round == 1
    assert scene.core.ledger.updates == 0


def test_sites_that_do_not_answer_are_given_two_whole_jobs() -> None:
    scene = Scene(limits=Limits(job=500.0, away=300.0))
    with pytest.raises(AbsentError, match="a, b: no answer"):
        Played(scene, lambda *_: "").drive()
    assert 1000 < scene.remote.now < 1010


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbuff"])
def test_a_job_that_is_out_is_waited_for_while_another_site_fails(algorithm: str) -> None:
    scene = Scene(algorithm, limits=Limits(job=1e6, away=300.0))

    def failure(client: int, time: float) -> str | None:
        return None if time > 1000 else "" if client == 0 else "no room"

    Played(scene, failure).drive()
    assert 1000 < scene.remote.now < 1100


def test_a_site_whose_uploads_are_refused_is_no_hope() -> None:
    scene = Scene()
    scene.dispatch()
    for client in (0, 1):
        scene.done(client)
        scene.next()
        scene.remote.put_aside(client, "its upload is refused (norm)")
    with pytest.raises(AbsentError, match=r"\(a, b: its upload is refused \(norm\)\)"):
        [*scene.events()]
