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


PAIR = r"accepted: a pair \(ServerState, "
CASES: list[tuple[str, Any, str]] = [
    ("init", lambda w: w, r"returned a tensor \[\d+\] of float64; accepted: a ServerState"),
    (
        "init",
        lambda w: ServerState(w.float()),
        r"returned a ServerState whose w is .* of float32; accepted: .* float64",
    ),
    ("aggregate", lambda state, _: state, rf"returned a ServerState; {PAIR}a tensor \[m\]"),
    ("aggregate", lambda *_: None, rf"returned None; {PAIR}"),
    ("aggregate", lambda state, shares: (state.w, shares), rf"returned \(a tensor \[{D}\] of float64, .*; {PAIR}"),
    (
        "aggregate",
        lambda state, shares: (replace(state, w=state.w[None]), shares),
        rf"returned a ServerState whose w is a tensor \[1, {D}\] of float64; accepted: a tensor \[D\] as before",
    ),
    ("aggregate", lambda state, shares: (replace(state, w=state.w.float()), shares), "whose w is .* of float32; "),
    ("aggregate", lambda state, shares: (state, shares[1:]), rf"weights a tensor \[.*; accepted: .* \[{PER_ROUND}\]"),
    ("aggregate", lambda state, shares: (state, shares[:, None]), rf"weights a tensor \[{PER_ROUND}, 1\] of"),
    ("aggregate", lambda state, shares: (state, shares.tolist()), r"weights .*; accepted: a tensor \[m\]"),
    ("receive", lambda state, _: state, rf"returned a ServerState; {PAIR}Receipt\)"),
    ("receive", lambda state, _: (state, 1.0), rf"returned \(a ServerState, 1.0\); {PAIR}Receipt\)"),
    ("receive", lambda state, receipt: (replace(state, w=state.w[:1]), receipt), r"whose w is a tensor \[1\] of"),
    ("plan", lambda _: None, rf"returned None; {PAIR}Brief\)"),
    ("plan", lambda state: (state, {}), rf"returned \(a ServerState, a dict\); {PAIR}Brief\)"),
    ("plan", lambda state: (replace(state, w=state.w.float()), Brief()), "whose w is .* of float32"),
    ("plan", asking, "yielded a dict with q: 1; accepted: a Brief"),
    ("close", lambda _: None, "returned None; accepted: a ServerState"),
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
