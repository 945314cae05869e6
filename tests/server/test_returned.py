"""What a server rule's hooks return: refused by name where the server could not go on with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkeel import FedkeelError
from fedkeel.methods import ClientRule, Job, Oracle, ServerRule, ServerState, Updates, method, registry
from fedkeel.methods.fedavg import Average
from fedkeel.methods.server import Brief, Cohort, Receipt, View
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.federation import PER_ROUND

D = federation.FEATURES * federation.CLASSES
FOUND: dict[str, Callable[..., Any]] = {}
"""What hooks of the rules below return, given the state."""


class Odd(Average):
    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        return FOUND.get("init", ServerState)(w)

    def plan(self, state: ServerState, cohort: Cohort) -> Any:
        return FOUND.get("plan", lambda state: (state, Brief()))(state)

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        usual = super().aggregate(state, updates)
        return FOUND["aggregate"](*usual) if "aggregate" in FOUND else usual

    def close(self, state: ServerState) -> ServerState:
        return FOUND.get("close", lambda state: state)(state)


class OddStream(ServerRule):
    pace = "stream"

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        return FOUND["receive"](state, Receipt(1.0))


class Scaled(ClientRule):
    """Goes `received["factor"]` times the gradient."""

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return job.received["factor"] * oracle.grad(w)


@pytest.fixture(autouse=True)
def _enrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", {**registry.methods()})
    registry.enrol(method("odd", client=ClientRule, server=Odd))
    registry.enrol(method("odd-stream", client=ClientRule, server=OddStream))
    registry.enrol(method("scaled", client=Scaled, server=Odd))


def asking(_: ServerState) -> Any:
    yield {"q": 1}


PAIR = r"must return a pair \(ServerState, "
CASES: list[tuple[str, Any, str]] = [
    ("init", lambda w: w, r"must return a ServerState; got a tensor \[\d+\] of float64"),
    (
        "init",
        lambda w: ServerState(w.float()),
        r"must return a ServerState whose w is .* float64; got .* of float32",
    ),
    ("aggregate", lambda state, _: state, rf"{PAIR}a tensor \[m\] .*; got a ServerState"),
    ("aggregate", lambda *_: None, rf"{PAIR}.*; got None"),
    ("aggregate", lambda state, shares: (state.w, shares), rf"{PAIR}.*; got \(a tensor \[{D}\] of float64, "),
    (
        "aggregate",
        lambda state, shares: (replace(state, w=state.w[None]), shares),
        rf"a ServerState whose w is a tensor \[D\] as before, .*; got a tensor \[1, {D}\] of float64",
    ),
    (
        "aggregate",
        lambda state, shares: (replace(state, w=state.w.float()), shares),
        "whose w is .*; got .* of float32",
    ),
    ("aggregate", lambda state, shares: (state, shares[1:]), rf"weights as a tensor .* \[{PER_ROUND}\]; got a tensor"),
    ("aggregate", lambda state, shares: (state, shares[:, None]), rf"weights .*; got a tensor \[{PER_ROUND}, 1\] of"),
    ("aggregate", lambda state, shares: (state, shares.tolist()), r"weights as a tensor \[m\], .*; got \("),
    ("receive", lambda state, _: state, rf"{PAIR}Receipt\); got a ServerState"),
    ("receive", lambda state, _: (state, 1.0), rf"{PAIR}Receipt\); got \(a ServerState, 1.0\)"),
    ("receive", lambda state, receipt: (replace(state, w=state.w[:1]), receipt), r"whose w .*; got a tensor \[1\] of"),
    ("plan", lambda _: None, rf"{PAIR}Brief\), .*; got None"),
    ("plan", lambda state: (state, {}), rf"{PAIR}Brief\), .*; got \(a ServerState, a dict\)"),
    ("plan", lambda state: (replace(state, w=state.w.float()), Brief()), "whose w is .*; got .* of float32"),
    ("plan", asking, "must yield a Brief; got a dict with q: 1"),
    ("close", lambda _: None, "must return a ServerState; got None"),
]


@pytest.mark.parametrize(("hook", "found", "said"), CASES)
def test_what_it_returns_is_checked(hook: str, found: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUND, hook, found)
    name, rule = ("odd-stream", "OddStream") if hook == "receive" else ("odd", "Odd")
    with pytest.raises(FedkeelError, match=f"^{rule}: {hook} .*{said}"):
        federation.train(name, "serial")


def test_a_plan_without_yield_goes_down_with_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = Brief(shared={"factor": torch.ones(1, dtype=torch.float64)})
    monkeypatch.setitem(FOUND, "plan", lambda state: (state, brief))
    ours, plain = (federation.weights(federation.train(name, "serial")[0]) for name in ("scaled", "fedavg"))
    np.testing.assert_array_equal(ours, plain)
    monkeypatch.setitem(FOUND, "plan", lambda state: (state, Brief(shared={"factor": 0 * brief.shared["factor"]})))
    still = federation.weights(federation.train("scaled", "serial")[0])
    np.testing.assert_allclose(still, federation.start(), rtol=1e-12)
