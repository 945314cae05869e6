"""Tasks of a stock node: only its own superexec gets them, and other users of the machine see no token."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec
from flwr.supercore.superexec.run_superexec import _SUPEREXEC_AUTH_METHODS
from flwr.supernode.cli.flower_supernode import _parse_supernode_lifespan_config, _start_supernode_http_api
from flwr.supernode.nodestate import NodeStateFactory

from fedkeel.deploy import programs
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.places import new_secret
from fedkeel.deploy.programs import Link
from fedkeel.world.flower.superexec import Hiding
from tests.helpers.flower import until

pytestmark = pytest.mark.extras


@pytest.fixture
def tasks(tmp_path: Path) -> Link:
    keys = Keys(tmp_path / "keys")
    keys.make([])
    return Link("127.0.0.1", programs.free_port(), keys)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return new_secret(tmp_path / "secret")


@pytest.fixture
def _node(tasks: Link, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What Flower's node serves when it is started with our arguments, with a task that waits."""
    words = programs.supernode("h:1", None, None, tasks, secret, tmp_path / "silo", tmp_path / "log")
    monkeypatch.setattr(sys, "argv", [*words])
    states = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    server, thread = _start_supernode_http_api(_parse_supernode_lifespan_config(), states)
    states.state().set_node_id(7)
    assert states.state().create_task(task_type=TaskType.CLIENT_APP, run_id=3, fab_hash="x")
    yield
    server.should_exit = True
    thread.join()


def acquired(tasks: Link, *more: Any) -> str:
    """The token of the task that waits."""
    assert tasks.keys is not None
    client = RuntimeHttpClient.from_server_address(
        server_address=tasks.near,
        insecure=False,
        root_certificates=tasks.keys.ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor("SuperExec"), *more],
    )
    try:
        return str(client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])).token)
    finally:
        client.close()


@pytest.mark.usefixtures("_node")
def test_only_who_knows_the_secret_gets_a_task(tasks: Link, secret: Path) -> None:
    def knowing(key: bytes) -> SuperExecAuthHttpInterceptor:
        return SuperExecAuthHttpInterceptor(master_secret=key, protected_methods=_SUPEREXEC_AUTH_METHODS)

    for more in ([], [knowing(b"0" * 64)]):
        with pytest.raises(httpx.HTTPStatusError) as refused:
            acquired(tasks, *more)
        assert refused.value.response.status_code == 401
    assert acquired(tasks, knowing(secret.read_bytes()))


def test_another_program_at_the_port_is_not_believed(tasks: Link, tmp_path: Path) -> None:
    """Who takes the port while the node is away could otherwise give its superexec tasks."""
    foreign = Keys(tmp_path / "foreign")
    foreign.make([])
    asked: list[str] = []

    async def app(scope: dict[str, Any], _receive: Any, _send: Any) -> None:
        asked.append(scope["type"])

    config = uvicorn.Config(
        app, port=tasks.port, lifespan="off", ssl_certfile=foreign.server, ssl_keyfile=foreign.server_key
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, 20)
    try:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            acquired(tasks)
    finally:
        server.should_exit = True
        thread.join()
    assert asked == []


def test_a_token_is_in_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's executor starts a program of this name; here it writes down what others can see, and what it got."""
    program = tmp_path / "flwr-clientapp"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n"
        "token = Path(sys.argv[sys.argv.index('--token-file') + 1]).read_text()\n"
        "seen = Path('/proc/self/cmdline').read_text().replace(chr(0), ' ')\n"
        f"Path({str(tmp_path / 'told')!r}).write_text(token + chr(10) + seen)\n"
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    started: list[Hiding] = []

    class Noting(Hiding):
        def __init__(self, *args: Any, **options: Any) -> None:
            started.append(self)
            super().__init__(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", Noting)
    spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:1", "a-token", True, None, False, 5, False, task_id=1)
    assert SubprocessExecutor().launch(spec).status == "accepted"
    assert started[0].wait() == 0
    token, seen = (tmp_path / "told").read_text().splitlines()
    assert token == "a-token"
    assert "a-token" not in seen
    assert "--runtime-api-address 127.0.0.1:1" in seen
    assert "--parent-pid 5" in seen
    plain = Hiding([sys.executable, "-c", "print('as it is')"], stdout=subprocess.PIPE)
    assert plain.communicate()[0] == b"as it is\n"
