"""The node of a key: as Flower's SuperLink tells it, with keys as Flower's own command reads them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.cli.supernode.register import try_load_public_key
from flwr.common.constant import NOOP_FLWR_AID
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.servicer.control import control_handlers

from fedkeel.deploy import identity
from fedkeel.world.flower import fleetapi, registration

pytestmark = pytest.mark.extras


def test_each_key_has_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = LinkStateFactory(":flwr-in-memory:", NoOpFederationManager(), ObjectStoreFactory()).state()
    paths = [tmp_path / f"{name}.pub" for name in ("north", "south", "west")]
    for path in paths:
        identity.make_node(path.with_suffix(""), path)
    before = [state.create_node(NOOP_FLWR_AID, "", try_load_public_key(path), 0) for path in paths[:2]]
    account: Any = SimpleNamespace(flwr_aid=NOOP_FLWR_AID, account_name="")
    new: list[Any] = []

    class Client:
        def __init__(self, url: str, **_: Any) -> None:
            assert url == "https://h:1"

        def ListNodes(self, request: Any) -> Any:  # noqa: N802
            return control_handlers.list_nodes(request, account, state)

        def RegisterNode(self, request: Any) -> Any:  # noqa: N802
            new.append(request.public_key)
            return control_handlers.register_node(request, account, state)

        def close(self) -> None: ...

    assert callable(ControlHttpClient.ListNodes)
    assert callable(ControlHttpClient.RegisterNode)
    monkeypatch.setattr(fleetapi, "ControlHttpClient", Client)
    for _ in range(2):  # the second time, all are known
        assert registration.main(["--superlink", "h:1", *map(str, paths)]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [told[str(path)] for path in paths[:2]] == before
        assert state.get_node_id_by_public_key(try_load_public_key(paths[2])) == told[str(paths[2])]
    assert new == [try_load_public_key(paths[2])]


def test_a_superlink_that_is_away_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    identity.make_node(tmp_path / "a", tmp_path / "a.pub")
    assert registration.main(["--superlink", "127.0.0.1:1", str(tmp_path / "a.pub")]) == 1
    assert "the SuperLink cannot be reached" in capsys.readouterr().err
