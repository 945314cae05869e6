"""All sites fail for a while, as when the disk that they share is full: no round is used up without an update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from fedkeel.deploy import serving
from fedkeel.errors import AbsentError
from fedkeel.world.remote.envelope import plain
from fedkeel.world.remote.loopback import Handler, Loopback
from fedkeel.world.remote.message import Message
from fedkeel.world.remote.remote import Remote
from fedkeel.world.remote.transport import Reply
from tests.helpers import deployed, faulty
from tests.helpers.tampered import filled, tampering, tensors


def failing(handler: Handler, times: int) -> Handler:
    """A site that cannot do its first so many jobs, as its disk is full."""
    left = times

    def answer(body: bytes) -> bytes:
        nonlocal left
        if faulty.kind(body) != "train" or not left:
            return handler(body)
        left -= 1
        return plain("failed", why="it cannot do this (OSError)")

    return answer


def sites(app: Path, times: int) -> Loopback:
    with deployed.own_modules(app):
        return Loopback({node: failing(handler, times) for node, handler in deployed.silos(app).items()})


def test_a_round_in_which_all_sites_fail_is_repeated(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=2)
    told = faulty.run(app, tmp_path / "run", sites(app, 3))  # a job is sent three times
    assert [(row["round"], row["arrived"], row["lost"]) for row in told.rows("rounds")] == [(1, 3, 3), (2, 3, 0)]
    assert [row["round"] for row in told.rows("history")] == [1, 2]


def test_a_run_in_which_nothing_works_ends_and_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = faulty.project(tmp_path / "app", rounds=2)
    limits = serving._limits
    monkeypatch.setattr(serving, "_limits", lambda settings: replace(limits(settings), away=0.3, retries=0))
    with pytest.raises(AbsentError, match=r"site-0, site-1, site-2: failed: it cannot do this \(OSError\)"):
        faulty.run(app, tmp_path / "run", sites(app, 10**9))
    monkeypatch.undo()
    told = faulty.run(app, tmp_path / "run")
    assert [(row["round"], row["arrived"]) for row in told.rows("rounds")] == [(1, 3), (2, 3)]


def test_a_site_is_put_aside_also_if_its_upload_was_the_last_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = faulty.project(tmp_path / "app", sites=2, rounds=1)
    aside: list[Any] = []
    monkeypatch.setattr(Remote, "put_aside", lambda _, *given: aside.append(given))
    first_came = Event()

    class Ordered(Loopback):
        def poll(self) -> list[Reply]:
            came = super().poll()
            if any(each.node == 1 and each.body and faulty.kind(each.body) == "done" for each in came):
                first_came.set()
            return came

    def last(message: Message) -> bytes:
        assert first_came.wait(60)
        return tensors(w=filled(float("nan")))(message)

    with deployed.own_modules(app):
        good, bad = deployed.silos(app).values()
    told = faulty.run(app, tmp_path / "run", Ordered({1: good, 2: tampering(bad, "done", last)}))
    assert aside == [(1, "its upload is refused (not finite)")]
    assert [row["arrived"] for row in told.rows("rounds")] == [1]
