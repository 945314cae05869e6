"""Sites that send what they should not: it is refused and written down, and the run goes on with the others."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkeel.deploy.places import Beside
from fedkeel.errors import DivergenceError, FedkeelError, InputError
from fedkeel.world.remote import roster
from fedkeel.world.remote.envelope import plain
from fedkeel.world.remote.loopback import Loopback
from fedkeel.world.remote.message import Message
from tests.helpers import deployed, faulty
from tests.helpers.tampered import Tamper, facts, filled, gigantic, headed, tampering, tensors
from tests.helpers.tiers import slow_but

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "AGAIN", 0.2)
    monkeypatch.setattr(roster, "LOOK", 0.05)


def ran(
    folder: Path, of: str, tamper: Tamper, method: str = "fedavg", deploy: dict[str, Any] | None = None, **more: Any
) -> faulty.Told:
    """A run in which site-1 changes its answers of a kind."""
    app = faulty.project(folder / "app", method, deploy=deploy or {}, **{"rounds": 2, **more})
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    return faulty.run(app, folder / "run", Loopback({**nodes, 2: tampering(nodes[2], of, tamper)}))


def without(name: str) -> Tamper:
    return lambda m: replace(m, tensors={each: t for each, t in m.tensors.items() if each != name}).pack()


def added(message: Message) -> bytes:
    return replace(message, tensors={**message.tensors, "more\x1b[2J": torch.zeros(3)}).pack()


UPLOADS: dict[str, tuple[Tamper, str, str]] = {
    "another run": (facts(run="0" * 32), "malformed", "another run"),
    "an old job": (facts(job=-1), "old job", r"job -1 is over, job \d is expected"),
    "a job to come": (facts(job=10**30), "old job", "is expected"),
    "no job": (facts(job=None), "malformed", "which job"),
    "a job in words": (facts(job="1"), "malformed", "which job"),
    "another client": (facts(client=0), "malformed", "comes from client 0"),
    "a client that is true": (facts(client=True), "malformed", "client must be a whole number"),
    "another version": (facts(version=-1), "wrong version", "claims version -1"),
    "a version to come": (facts(version=10**30), "from the future", "the newest is"),
    "no epochs": (facts(epochs=0), "malformed", "claims 0 epochs; 1 to 2"),
    "too many epochs": (facts(epochs=3), "malformed", "claims 3 epochs; 1 to 2"),
    "epochs in words": (facts(epochs="2"), "malformed", "epochs must be a whole number"),
    "fewer epochs than rates": (facts(epochs=1), "malformed", r"lr must have the shape \[1, 1\]"),
    "a merge that was not": (facts(slot=1), "malformed", "claims a merge after 1 epochs"),
    "a merge before the start": (facts(slot=-1), "malformed", "claims a merge after -1 epochs"),
    "other names": (added, "malformed", "other names than expected: 'more"),
    "missing weights": (without("w"), "malformed", "other names than expected: w"),
    "another shape": (tensors(w=lambda w: w[:, 1:]), "malformed", r"w must have the shape"),
    "two rows": (tensors(w=lambda w: w.repeat(2, 1)), "malformed", r"w must have the shape"),
    "another type": (tensors(w=torch.Tensor.double), "malformed", "w must be torch.float32"),
    "half precision": (tensors(w=torch.Tensor.half), "malformed", "w must be torch.float32"),
    "nan": (tensors(w=filled(NAN)), "not finite", "NaN or infinite"),
    "infinity": (tensors(w=filled(INF)), "not finite", "NaN or infinite"),
    "a loss that is nan": (tensors(loss=filled(NAN)), "malformed", "loss holds NaN"),
    "a rate that is nan": (tensors(lr=filled(NAN)), "malformed", "lr holds NaN"),
    "no rate": (tensors(lr=lambda lr: lr * 0), "malformed", "other learning rates than it was sent, up to 0"),
    "a huge rate": (tensors(lr=lambda lr: lr * 1e30), "malformed", "other learning rates than it was sent"),
    "a longer rate": (tensors(lr=lambda lr: lr.repeat(1, 2)), "malformed", r"lr must have the shape \[1, 2\]"),
    "absurd steps": (tensors(steps=lambda s: s + 10**15), "malformed", "steps; 2 epochs of the client have"),
    "no steps": (tensors(steps=lambda s: s * 0), "malformed", "claims 0 steps"),
    "random bytes": (lambda _: random.Random(1).randbytes(5000), "malformed", "no message of fedkeel"),
    "nothing": (lambda _: b"", "malformed", "no message of fedkeel"),
    "cut off": (lambda m: m.pack()[:-100], "malformed", "cannot be read"),
    "gigantic": (gigantic, "malformed", "cannot be read"),
    "deep nesting": (lambda _: headed(b'{"__metadata__":' + b"[" * 100_000), "malformed", "no message of fedkeel"),
    "huge numbers": (lambda _: headed(b'{"a":' + b"9" * 100_000 + b"}"), "malformed", "no message of fedkeel"),
    "another protocol": (facts(protocol=2), "malformed", "protocol 2, not 1"),
    "too large": (lambda m: m.pack() + b"0" * 100_000_000, "malformed", "100,.* bytes; at most .* are allowed"),
    "somewhat too large": (lambda m: m.pack() + b"0" * 3_000_000, "malformed", "bytes; at most .* are allowed"),
    "another kind": (lambda m: replace(m, kind="here").pack(), "malformed", "it is a here, which was not expected"),
    "a question": (lambda m: replace(m, kind="ask").pack(), "malformed", "it is a ask, which was not expected"),
    "a long kind": (lambda m: replace(m, kind="k\n" * 9000).pack(), "malformed", "which was not expected"),
}


@pytest.mark.parametrize("case", slow_but(UPLOADS, "nan", "absurd steps", "gigantic", "too large"))
def test_an_upload_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    tamper, reason, detail = UPLOADS[case]
    told = ran(tmp_path, "done", tamper)
    rows = told.rows("refused")
    assert rows
    assert {(row["client"], row["reason"]) for row in rows} == {(1, reason)}
    assert all(re.search(detail, row["detail"]) for row in rows), rows
    assert all(len(row["detail"]) < 600 and row["detail"].isprintable() for row in rows)
    assert {row["client"] for row in told.rows("clients")} == {0, 2}
    assert [row["round"] for row in told.rows("history")] == [1, 2]
    assert all(each.isfinite().all() for each in deployed.weights(told.folder).values())


PARTS: dict[str, tuple[str, Tamper, dict[str, Any], str]] = {
    "a message": ("scaffold", tensors(message__c_delta=filled(NAN)), {}, "not finite"),
    "a sum": ("fedavg", tensors(sum__g=filled(INF)), {"algorithm": "fedagg"}, "malformed"),
    "buffers": ("fedavg", tensors(buffers=filled(NAN)), {"model": "resnet20", "rounds": 1}, "not finite"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PARTS)
def test_nothing_that_is_sent_beside_the_weights_may_be_infinite(case: str, tmp_path: Path) -> None:
    method, tamper, more, reason = PARTS[case]
    if case == "buffers":
        more = {**more, "local": {"epochs": 1, "batch_size": 20, "lr": 0.05}}

    def found(message: Message) -> bytes:
        """Whatever the message or the sum is called."""
        if case == "buffers":
            return tamper(message)
        start = "message/" if case == "a message" else "sum/"
        name = next(each for each in message.tensors if each.startswith(start))
        return tensors(**{name.replace("/", "__"): filled(NAN)})(message)

    told = ran(tmp_path, "done", found, method, **more)
    assert {(row["client"], row["reason"]) for row in told.rows("refused")} == {(1, reason)}
    assert {row["client"] for row in told.rows("clients")} == {0, 2}


SURVEYS: dict[str, tuple[str, Tamper]] = {
    "nan": ("NaN or infinite", tensors(message__q=filled(NAN))),
    "names": ("other names", without("message/q")),
    "shape": ("must have the shape", tensors(message__q=lambda q: q.repeat(1, 2))),
    "diverged": ("diverged", tensors(finite=filled(0))),
    "garbage": ("did not answer", lambda _: b"garbage"),
    "large": ("bytes; at most", lambda m: m.pack() + b"0" * 3_000_000),
    "another run": ("another run", facts(run="0" * 32)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SURVEYS)
def test_an_answer_to_a_survey_that_is_none_is_left_out(case: str, tmp_path: Path) -> None:
    line, tamper = SURVEYS[case]
    told = ran(tmp_path, "answer", tamper, "fedent", deploy={"retries": 0})
    assert any("site-1" in each and line in each for each in told.lines), told.lines
    assert {row["client"] for row in told.rows("clients")} == {0, 2}


SCORES: dict[str, Tamper] = {
    "words": facts(metrics={"accuracy": "1.0"}),
    "nan": facts(metrics={"accuracy": NAN}),
    "infinite": facts(loss=INF),
    "a loss in words": facts(loss="low"),
    "a huge loss": facts(loss=10**400),
    "a list": facts(metrics=[1, 2]),
    "others": facts(metrics={"f1": 0.5}),
    "garbage": lambda _: b"garbage",
    "large": lambda m: replace(m, tensors={"more": torch.zeros(1_000_000)}).pack(),
    "another kind": lambda m: replace(m, kind="done").pack(),
}
OWN_TESTS = """
import numpy as np


def load(site):
    y = np.arange(40) % 2
    x = np.random.default_rng(site.number).normal(size=(40, 5)) + y[:, None]
    return x.astype("float32"), y
"""


def scored_by_sites(folder: Path) -> Path:
    """A project without a test set at the server."""
    app = faulty.project(
        folder / "app", rounds=2, deploy={"retries": 0}, dataset={"name": "data:load"}, partition="iid"
    )
    (app / "data.py").write_text(OWN_TESTS)
    return app


@pytest.mark.slow
@pytest.mark.parametrize("case", SCORES)
def test_scores_that_are_none_do_not_count(case: str, tmp_path: Path) -> None:
    app = scored_by_sites(tmp_path)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    honest = faulty.run(app, tmp_path / "honest", Loopback({node: nodes[node] for node in nodes}))
    told = faulty.run(app, tmp_path / "run", Loopback({**nodes, 2: tampering(nodes[2], "scores", SCORES[case])}))
    said = ("no use", "did not answer", "left out of the test")
    assert any("site-1" in line and any(words in line for words in said) for line in told.lines), told.lines
    losses = [row["loss"] for row in told.rows("history")]
    assert len(losses) == 2
    assert losses != [row["loss"] for row in honest.rows("history")]
    deployed.assert_equal(deployed.weights(told.folder), deployed.weights(honest.folder))


@pytest.mark.slow
def test_a_model_that_all_sites_find_infinite_has_diverged(tmp_path: Path) -> None:
    app = scored_by_sites(tmp_path)
    with deployed.own_modules(app):
        nodes = {node: tampering(each, "scores", facts(loss=INF)) for node, each in deployed.silos(app).items()}
    with pytest.raises(DivergenceError, match="the test loss is nan"):
        faulty.run(app, tmp_path / "run", Loopback(nodes))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [1e200, INF])
def test_one_site_alone_does_not_end_the_run_by_its_test(loss: float, tmp_path: Path) -> None:
    app = scored_by_sites(tmp_path)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    bad = tampering(nodes[2], "scores", facts(loss=loss))
    told = faulty.run(app, tmp_path / "run", Loopback({**nodes, 2: bad}))
    assert any("site-1 is left out of the test: its loss is" in line for line in told.lines), told.lines
    assert [row["tested_by"] for row in told.rows("history")] == [[0, 2], [0, 2]]


HERE: dict[str, tuple[Tamper, str]] = {
    "no samples": (facts(samples=0), "samples must be a whole number from 1"),
    "negative samples": (facts(samples=-5), "samples must be a whole number from 1"),
    "absurd samples": (facts(samples=10**20), "samples must be a whole number from 1"),
    "samples in words": (facts(samples="many"), "samples must be a whole number"),
    "half a sample": (facts(samples=1.5), "samples must be a whole number"),
    "no facts": (facts(samples=None, x=None), "does not tell x"),
    "tests": (facts(tests=-1), "tests must be a whole number from 0"),
    "a shape in words": (facts(x="large"), "x must be a shape and a type"),
    "a huge shape": (facts(x=[[10**6, 10**6], "torch.float32"]), "x must have at most"),
    "a negative shape": (facts(x=[[-1], "torch.float32"]), "a size of x must be"),
    "a type": (facts(x=[[1], "load"]), "unknown type, 'load'"),
    "another shape": (facts(x=[[3, 3], "torch.float32"]), "its data has other x"),
    "classes": (facts(classes=10**9), "classes must be a whole number"),
    "names": (facts(class_names=[1, 2]), "class_names must be words"),
    "labels": (facts(labels=[1]), "labels must be a count for each"),
    "no word of its tests": (facts(own_tests=None), "does not tell own_tests"),
    "no vocabulary": (facts(vocabulary=None), "does not tell vocabulary"),
    "tests of its own": (facts(own_tests=1), "own_tests must be true or false"),
    "augment": (facts(augment="yes"), "augment must be true or false"),
    "another layout": (facts(layout="0"), "is not the server's"),
    "another name": (facts(site="site-0"), "calls itself site-0, which belongs to another node"),
    "a name of its own": (facts(site="me"), "calls itself 'me', which is not one of the sites"),
    "no name": (facts(site=["site-1"]), "which is not one of the sites"),
    "another run": (facts(run="0" * 32), "answered for another run"),
    "garbage": (lambda _: b"garbage", "no message of fedkeel"),
    "large": (lambda m: m.pack() + b"0" * (1 << 25), "bytes; at most"),
    "ready": (lambda m: replace(m, kind="ready").pack(), "answered with ready"),
    "another protocol": (facts(protocol=9), "install the same fedkeel"),
    "a long reason": (lambda _: plain("failed", why="\x1b[2J" * 100_000), "cannot take part"),
}


@pytest.mark.parametrize("case", slow_but(HERE, "absurd samples", "a huge shape"))
def test_a_site_that_tells_what_cannot_be_does_not_take_part(case: str, tmp_path: Path) -> None:
    tamper, why = HERE[case]
    app = faulty.project(tmp_path / "app", rounds=1, deploy={"wait_for": 2})
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    transport = Loopback(
        {**nodes, 2: tampering(nodes[2], "here", tamper)},
        down=lambda node, body: [(0.3 if node == 2 and faulty.kind(body) == "hello" else 0.0, body)],
        up=lambda _, body: [(0.5 if faulty.kind(body) == "done" else 0.0, body)],
    )  # the others come first, and are at work when it comes
    told = faulty.run(app, tmp_path / "run", transport)
    lines = [line for line in told.lines if "cannot take part" in line]
    assert any(why in line for line in lines), told.lines
    assert all(len(line) < 1000 and line.isprintable() for line in lines)
    assert {row["client"] for row in told.rows("clients")} == {0, 2}


def test_a_site_that_claims_very_many_samples_costs_no_memory(tmp_path: Path) -> None:
    told = ran(tmp_path, "here", facts(samples=10**12), rounds=1)
    assert json.loads((told.folder / "labels.json").read_text())["most"] == 10**12
    assert {row["client"] for row in told.rows("clients")} == {0, 2}  # it did not go through so many


@pytest.mark.parametrize("most", [0.001, 1.0, 20.0])
def test_the_largest_upload_is_what_the_settings_say(most: float, tmp_path: Path) -> None:
    waits = 2 if most < 0.01 else 30  # the answers that come first are too large, and nobody can join
    app = faulty.project(tmp_path / "app", rounds=1, deploy={"max_upload_mb": most, "join_seconds": waits})
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    large = tampering(nodes[2], "done", lambda m: m.pack() + b"0" * 3_000_000)
    transport = Loopback({**nodes, 2: large})
    if most < 0.01:
        with pytest.raises(FedkeelError, match=r"only 0 of 3 sites .* bytes; at most 1,000 are allowed"):
            faulty.run(app, tmp_path / "run", transport)
        return
    told = faulty.run(app, tmp_path / "run", transport)
    assert transport.most == most * 1e6
    (row,) = told.rows("refused")
    assert ("at most 1,000,000 are allowed" in row["detail"]) == (most == 1.0)


def test_a_limit_that_no_upload_can_keep_is_refused(tmp_path: Path) -> None:
    app = faulty.project(tmp_path / "app", rounds=1, deploy={"max_upload_mb": 0.02})
    with pytest.raises(
        InputError, match=r"max_upload_mb must be at least 0\.0314 for this model and method; got 0\.02"
    ):
        faulty.run(app, tmp_path / "run")


@pytest.mark.parametrize("diverged", ["stop", "refuse"])
def test_training_that_diverged_follows_the_gate(diverged: str, tmp_path: Path) -> None:
    def honest(message: Message) -> bytes:
        """As a site tells it whose loss is infinite."""
        return tensors(w=filled(NAN), loss=filled(INF), finite=filled(0))(message)

    if diverged == "stop":
        with pytest.raises(DivergenceError, match="training diverged in round 1 on client 1"):
            ran(tmp_path, "done", honest, gate={"diverged": "stop"})
        return
    told = ran(tmp_path, "done", honest, gate={"diverged": "refuse"})
    assert {(row["client"], row["reason"]) for row in told.rows("refused")} == {(1, "diverged")}


GARBAGE: dict[str, Callable[[Message], bytes]] = {
    "bytes": lambda _: random.Random(2).randbytes(3000),
    "cut off": lambda m: m.pack()[:-9],
    "no facts": lambda m: Message("train", {}, m.tensors).pack(),
    "no job": facts(job=None),
    "a negative job": facts(job=-1),
    "a job in words": facts(job="7", settled="x"),
    "epochs": facts(epochs=0),
    "many epochs": facts(epochs=10**12),
    "another client": facts(client=2),
    "a run that is a path": facts(run="../../etc"),
    "no weights": without("w"),
    "other weights": tensors(w=lambda w: w[1:]),
    "another type": tensors(w=torch.Tensor.double),
    "another kind": lambda m: replace(m, kind="shutdown").pack(),
    "a survey": lambda m: replace(m, kind="survey").pack(),
    "a test": lambda m: replace(m, kind="evaluate").pack(),
    "a fresh model": lambda m: replace(m, kind="fresh").pack(),
    "a first model": lambda m: replace(m, kind="begin", tensors={**m.tensors, "w": m.tensors["w"][1:]}).pack(),
}


def test_a_site_that_gets_garbage_says_so_and_lives_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    app = faulty.project(tmp_path / "app", "scaffold", rounds=2)
    with deployed.own_modules(app):
        nodes = deployed.silos(app)
    answers: dict[str, Message] = {}

    def also(body: bytes) -> bytes:
        if faulty.kind(body) == "train":
            for name, spoil in GARBAGE.items():
                answers[name] = Message.unpack(nodes[2](spoil(Message.unpack(body))))
        return nodes[2](body)

    told = faulty.run(app, tmp_path / "run", Loopback({**nodes, 2: also}))
    assert {name for name, answer in answers.items() if answer.kind != "failed"} == set()
    assert all(0 < len(answer.facts["why"]) < 600 for answer in answers.values())
    deployed.assert_equal(deployed.weights(told.folder), deployed.simulated(app).model.state_dict())
    capfd.readouterr()  # unexpected errors are printed where the site runs


def test_a_name_belongs_to_the_node_of_its_key(tmp_path: Path) -> None:
    app = deployed.project(tmp_path / "app", 2, {"join_seconds": 1})
    beside = Beside(tmp_path / "run")
    beside.make()
    beside.add_nodes({"site-0": 1})
    beside.add_nodes({"site-1": 7})
    lines: list[str] = []
    with pytest.raises(FedkeelError, match="only 1 of 2 sites"):
        deployed.deployed(app, tmp_path / "run", tell=lines.append)
    assert any("site-1, which belongs to another node" in line for line in lines)
