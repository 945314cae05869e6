"""Eq. 3's error, for which the simulator trains what stragglers missed: it leaves the run as it is."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel import RoundEnd
from fedkeel.methods import ServerState, Updates
from fedkeel.methods.fedlga import GradientApproximation, completion_errors
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR

ERRORS = {"error_completed", "error_untouched", "error_best_factor"}
LATE: dict[str, Any] = {"fleet": {"rho": 0.5}, "local": {"epochs": 4}, "per_round": 4}
STATEFUL: dict[str, Any] = {"wire": [{"kind": "cast", "dtype": "float16", "feedback": True}]}
"""Clients keep the rounding errors of their uploads."""


def pair(executor: str, model: Any = federation.net, client: str | None = None, **settings: Any) -> list[RoundEnd]:
    """A diagnosed run, which must be the same as without but for what it reports."""
    algorithm = {"name": "fedlga"} | ({"client": client} if client else {})
    plain, watched = (
        federation.train({**algorithm, "diagnose": diagnose}, executor, model(), **{**LATE, **settings})
        for diagnose in (False, True)
    )
    assert np.array_equal(federation.weights(plain[0]), federation.weights(watched[0]))
    for before, after in zip(plain[1], watched[1], strict=True):
        assert before.arrivals.columns == after.arrivals.columns
        assert (before.virtual_seconds, before.train_loss) == (after.virtual_seconds, after.train_loss)
        assert before.report == {name: value for name, value in after.report.items() if name not in ERRORS}
        assert before.evaluation is None or after.evaluation is not None
        if before.evaluation and after.evaluation:
            assert (before.evaluation.bytes_up, before.evaluation.bytes_down, before.evaluation.loss) == (
                after.evaluation.bytes_up, after.evaluation.bytes_down, after.evaluation.loss,
            )  # fmt: skip
        assert after.report.keys() >= ERRORS
        assert 0 < after.report["error_best_factor"] <= after.report["error_untouched"]
    return watched[1]


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_the_run_is_the_same_to_the_bit(executor: str) -> None:
    pair(executor)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "processes"])
@pytest.mark.parametrize("client", ["fedsam", "moon", "fedprox"])
def test_with_other_client_rules_and_clients_that_keep_something(executor: str, client: str) -> None:
    pair(executor, lambda: federation.net(5), client, **STATEFUL)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_with_dropout_and_clients_drawn_twice(executor: str) -> None:
    pair(executor, lambda: nn.Sequential(federation.net(5), nn.Dropout(0.3)), sampling="scheme1")


def test_rounds_without_stragglers_have_no_error() -> None:
    settings = {**LATE, "fleet": {"rho": 0.25}, "per_round": 2, "rounds": 8}
    _, ends = federation.train({"name": "fedlga", "diagnose": True}, **settings)
    late = [end.report["stragglers"] > 0 for end in ends]
    assert 0 < sum(late) < len(late)
    assert [end.report.keys() >= ERRORS for end in ends] == late
    assert [bool(ERRORS & end.report.keys()) for end in ends] == late


def test_refused_uploads_leave_the_others_with_their_own_errors() -> None:
    """One of the stragglers is too long for the gate: the error is that of those that are let in."""
    settings: dict[str, Any] = {**LATE, "rounds": 1, "fleet": {"rho": 1.0}, "per_round": 6}
    _, (whole,) = federation.train({"name": "fedlga", "diagnose": True}, **settings)
    longest = 0.4
    _, (end,) = federation.train({"name": "fedlga", "diagnose": True}, gate={"max_norm": longest}, **settings)
    assert 0 < len(end.arrivals.columns["client"]) < len(whole.arrivals.columns["client"])
    x, errors = federation.start(), []
    for client, epochs in zip(end.arrivals.columns["client"], end.arrivals.columns["epochs"], strict=True):
        w, path = x, []
        for batch in federation.batches(1, client, 4):
            w = w - federation.LR * federation.gradient(w, *batch)
            path.append(w - x)
        part = path[epochs * len(path) // 4 - 1]
        errors.append(np.linalg.norm(part - path[-1]) / np.linalg.norm(path[-1]))
    assert end.report["error_untouched"] == pytest.approx(np.mean(errors), abs=1e-9)


def test_a_server_on_real_machines_reports_no_error() -> None:
    w, ones = torch.eye(2, dtype=torch.float64), torch.ones(2, 1)
    epochs = torch.tensor([[2], [1]])
    layout = Layout.of(nn.Linear(2, 1, bias=False))
    updates = Updates(w, torch.zeros_like(w), ones, epochs, epochs, 0.1 * torch.ones(2, 2), {}, layout, asked=2)
    rule = GradientApproximation(diagnose=True, reading="practical")
    after, _ = rule.aggregate(ServerState(torch.zeros(2, dtype=torch.float64)), updates)
    assert rule.report(after).keys() == {"stragglers", "mean_factor", "capped"}


def test_whole_training_that_came_to_nothing_does_not_count() -> None:
    delta = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 1.0]])
    full = torch.tensor([[3.0, 4.0], [torch.inf, 0.0], [0.0, 0.0]])
    factors = torch.tensor([3.0, 1.0, 1.0])
    told = {name: float(value) for name, value in completion_errors(delta, full, factors).items()}
    assert told == pytest.approx(
        {"error_completed": 0.8, "error_untouched": np.hypot(2, 4) / 5, "error_best_factor": 0.8}
    )
    assert completion_errors(delta[1:], full[1:], factors[1:]) == {}
