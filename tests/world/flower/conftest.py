"""Flower's messages can be made in this process, and a silo answers them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.flower import Silo, short_folder


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a task that Flower has started."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(identity, name, 1)


@pytest.fixture
def silo() -> Iterator[Silo]:
    with short_folder() as folder:
        silo = Silo(str(folder / "silo"), lambda body: b"answer to " + body).start()
        yield silo
        silo.stop()
