"""The contract with Flower's private modules: every name, argument and field that `fleetapi` uses."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.supercore.retry import RetryInvoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from fedkeel.errors import InputError
from fedkeel.world.flower import fleetapi

pytestmark = pytest.mark.extras

FIELDS = {
    fleet_pb2.ActivateNodeRequest: {"public_key", "heartbeat_interval"},
    fleet_pb2.ActivateNodeResponse: {"node_id"},
    fleet_pb2.DeactivateNodeRequest: {"node_id"},
    fleet_pb2.PullMessagesRequest: {"node"},
    fleet_pb2.PullMessagesResponse: {"messages_list", "message_object_trees"},
    fleet_pb2.PushMessagesRequest: {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"},
    fleet_pb2.PushMessagesResponse: {"objects_to_push", "session_id"},
    fleet_pb2.RegisterNodeFleetRequest: {"public_key"},
    fleet_pb2.UnregisterNodeFleetRequest: {"node_id"},
    heartbeat_pb2.SendNodeHeartbeatRequest: {"node", "heartbeat_interval"},
    message_pb2.ConfirmMessageReceivedRequest: {"node", "run_id", "message_object_id"},
    message_pb2.Metadata: {"run_id", "message_id", "reply_to_message_id", "created_at", "ttl"},
    message_pb2.ObjectTree: {"object_id", "children"},
    message_pb2.PullObjectRequest: {"node", "run_id", "object_id"},
    message_pb2.PullObjectResponse: {"object_found", "object_available", "object_content"},
    message_pb2.PushObjectRequest: {"node", "run_id", "object_id", "object_content", "session_id"},
    message_pb2.PushObjectResponse: {"stored"},
    node_pb2.Node: {"node_id"},
    runtime_pb2.PullAppMessagesRequest: {"message_ids"},
    runtime_pb2.PullAppMessagesResponse: {"messages_list", "message_object_trees"},
}
FLEET_CALLS = (
    "RegisterNode", "ActivateNode", "DeactivateNode", "UnregisterNode", "SendNodeHeartbeat", "PullMessages",
    "PushMessages", "PushObject", "PullObject", "ConfirmMessageReceived",
)  # fmt: skip
ARGUMENTS: list[tuple[Callable[..., Any], list[str]]] = [
    (fleetapi.message_to_proto, ["message"]),
    (fleetapi.remove_content_from_message, ["message"]),
    (fleetapi.get_all_nested_objects, ["obj"]),
    (fleetapi.get_object_head_values_from_object_content, ["object_content"]),
    (fleetapi.get_object_tree, ["obj"]),
    (fleetapi.iterate_object_tree, ["tree"]),
    (fleetapi.no_object_id_recompute, []),
    (fleetapi.public_key_to_bytes, ["public_key"]),
    (fleetapi.make_simple_http_retry_invoker, []),
    (fleetapi.FlowerError.from_json, ["value"]),
    (fleetapi.RuntimeVersionHttpInterceptor, ["component_name"]),
    (fleetapi.NodeAuthHttpInterceptor, ["private_key", "public_key"]),
]


def test_the_version_is_the_one_that_is_known() -> None:
    assert version("flwr") == fleetapi.PINNED
    fleetapi.check(fleetapi.PINNED)


@pytest.mark.parametrize("other", ["1.41.1", "1.42.0", "1.4.0", "2.0.0"])
def test_any_other_version_is_refused(other: str) -> None:
    with pytest.raises(InputError, match=rf"needs Flower 1\.41\.0, not {other}; run pip install 'fedkeel\[flower\]'"):
        fleetapi.check(other)


@pytest.mark.parametrize("message", FIELDS, ids=lambda each: each.__name__)
def test_messages_have_the_fields(message: Any) -> None:
    assert FIELDS[message] <= {*message.DESCRIPTOR.fields_by_name}


@pytest.mark.parametrize("name", FLEET_CALLS)
def test_the_fleet_has_the_calls(name: str) -> None:
    assert [*inspect.signature(getattr(fleetapi.FleetHttpClient, name)).parameters] == ["self", "request"]


@pytest.mark.parametrize("name", ["PullMessages", "PullObject", "ConfirmMessageReceived"])
def test_the_runtime_has_the_calls(name: str) -> None:
    assert [*inspect.signature(getattr(RuntimeHttpClient, name)).parameters] == ["self", "request"]


@pytest.mark.parametrize(("function", "names"), ARGUMENTS, ids=lambda each: getattr(each, "__name__", ""))
def test_functions_have_the_arguments(function: Callable[..., Any], names: list[str]) -> None:
    assert [*inspect.signature(function).parameters] == names


def test_functions_with_more_arguments_have_the_first_ones() -> None:
    inflate = inspect.signature(fleetapi.inflate_object_from_contents)
    assert [*inflate.parameters][:2] == ["object_id", "object_contents"]
    client = inspect.signature(fleetapi.FleetHttpClient).parameters
    assert {"base_url", "interceptors", "verify", "timeout"} <= {*client}
    assert {"max_time", "recoverable_exceptions"} <= {*inspect.signature(RetryInvoker).parameters}


def test_a_grid_has_the_attributes() -> None:
    """A copy connects by itself, with an invoker of its own."""
    grid = HttpGrid("127.0.0.1:1", insecure=True, token="x")
    assert {"_client", "_retry_invoker", "node"} <= {*vars(grid)}
    line = fleetapi.runtime_line(grid)
    assert line is not None
    assert line._client._retry_invoker is line.grid._retry_invoker is not grid._retry_invoker
    assert line.grid._retry_invoker.max_time == fleetapi._RETRIES
    assert line._client._client.timeout.read == fleetapi._TIMEOUT
    line.close()


def test_no_other_file_knows_private_modules() -> None:
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    files = [path for path in Path(inspect.getfile(fleetapi)).parent.glob("*.py") if path.name != "fleetapi.py"]
    assert {name for path in files for name in re.findall(r"(?:from|import) (flwr\S*)", path.read_text())} == public


def test_a_missing_flower_is_told() -> None:
    code = "import sys; sys.modules['flwr'] = None\nimport fedkeel.world.flower.grid"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: a deployment needs Flower; run pip install 'fedkeel[flower]'" in done.stderr
