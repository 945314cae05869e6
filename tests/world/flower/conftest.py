"""Flower's messages can be made in this process."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a task that Flower has started."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(identity, name, 1)
