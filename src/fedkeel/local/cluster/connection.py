"""A connection to Ray: to a cluster of this run's own on this machine, or to one that is there already."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from fedkeel.errors import InputError, MishapError, counted, label, words
from fedkeel.local.cluster.alike import check
from fedkeel.local.cluster.wish import GB, Node, Wish
from fedkeel.local.machine import all_bytes, bytes_and_why, cores_and_why, free_bytes

ANSWER_SECONDS = 5.0
"""In which something must answer at an address."""
CONNECT_SECONDS = 30.0
"""In which a cluster must let this process in, and every machine of it must say what it has."""
LEAVE_SECONDS = 3.0
"""So long workers of others may take to leave a cluster that is not full."""
FULL_SECONDS = 10.0
"""So long a full cluster may take to get room for a worker."""
_TICK = 0.5
_LOOPBACK = "127.0.0.2"
"""Not 127.0.0.1, in the place of which Ray takes an address that others can reach."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Pages of Ray's logs about a lost machine would end up between a run's lines.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
_STORE = 0.3
"""The share of free memory that Ray gives its store of objects; the rest is for workers."""
FOLDER = "fedkeel-ray-"
"""How the folder of a run's own cluster begins."""
_HELD = "in-use"


def package() -> Any:
    """The module `ray`, which is imported only here."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InputError("executor.kind=ray needs Ray; run pip install 'fedkeel[ray]'") from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


class Connection:
    """A process has one at a time. A cluster that it started ends with it."""

    def __init__(self, wish: Wish) -> None:
        self.ray = package()
        self._folder: Path | None = None
        self._ours = True
        try:
            if self.ray.is_initialized():
                self._share(wish)
            elif wish.address is None:
                self._start(wish)
            else:
                self._join(wish.address)
            self.nodes = self.alive()
            if self._folder is None:
                check(self.ray, self.nodes, CONNECT_SECONDS)
        except BaseException:
            self.close()
            raise

    def _share(self, wish: Wish) -> None:
        """Use a connection that the user's program has made."""
        self._ours, mine = False, self.ray.get_runtime_context().gcs_address
        self._name = "the cluster that this program is connected to"
        if wish.address not in (None, "auto", mine):
            raise InputError(
                f"executor.address={label(str(wish.address))} cannot be used, as this program is connected to the Ray "
                f"cluster {mine}; remove it, or call ray.shutdown() before"
            )

    def _start(self, wish: Wish) -> None:
        """A cluster on this machine alone, as large as this process may be."""
        if sys.platform != "linux":
            raise InputError(
                "executor.kind=ray starts a cluster of its own only on Linux; start Ray with `ray start --head`, and "
                "set executor.address=auto"
            )
        usable, why = cores_and_why()
        asked = ceil((wish.workers or 1) * min(wish.cpus, usable))
        self._found = counted(usable, "core") + (f" by {why}" if usable < (os.cpu_count() or 1) else "")
        memory = dict[str, Any]()
        if (most := bytes_and_why())[0] < all_bytes():  # Ray takes all of the machine's for its own
            self._found += f" and {most[0] / GB:.3g} GB of memory by {most[1]}"
            free = free_bytes()
            memory = {"_memory": int((1 - _STORE) * free), "object_store_memory": int(_STORE * free)}
        self._folder, self._held = _new_folder()
        try:
            with _signals_later(self.ray):
                self.ray.init(
                    address="local",
                    num_cpus=max(usable, asked),
                    **memory,
                    include_dashboard=False,
                    _node_ip_address=_LOOPBACK,
                    _temp_dir=str(self._folder),
                    **_quietly(),
                )
        except Exception as error:
            raise MishapError(
                f"executor.kind=ray: no cluster could be started on this machine ({words(error)})"
            ) from error

    def _join(self, address: str) -> None:
        """A cluster that this machine is part of."""
        told = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
        host, _, port = told.rpartition(":")
        if host and port.isdecimal():
            try:
                socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
            except OSError as error:
                raise InputError(
                    f"executor.address: nothing answers at {label(told)}{' of RAY_ADDRESS' * (address == 'auto')} "
                    f"({words(error)}); give HOST:PORT as `ray start --head` prints it, or set executor.address=null "
                    "to use this machine alone"
                ) from None
        failure = self._within(CONNECT_SECONDS, lambda: self.ray.init(address=address, **_quietly()), self.ray.shutdown)
        if failure is None:
            self._name = f"the cluster {self.ray.get_runtime_context().gcs_address}"
            return
        said = words(failure)
        if "ersion mismatch" in said:
            raise InputError(
                f"executor.address: the cluster {label(address)} has another Python or Ray than this process; "
                f"install the same on all machines ({said})"
            )
        if isinstance(failure, TimeoutError):
            said = f"it did not let this process in within {CONNECT_SECONDS:.0f} seconds"
        if address == "auto" and isinstance(failure, ConnectionError):
            said = "this machine is part of none"
        raise InputError(
            f"executor.address: no Ray cluster can be used at {label(address)}: {said}; start Ray on this machine with "
            "`ray start --address=HOST:PORT`, or a new cluster with `ray start --head`, or set executor.address=null; "
            "if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
        )

    @staticmethod
    def _within(seconds: float, work: Any, undo: Any) -> BaseException | None:
        """Do this in a thread, so that it cannot take for ever; returns what went wrong, if something did.

        What is done too late, or after an interruption, is undone.
        """
        failures: list[BaseException] = []
        over, given_up = threading.Event(), threading.Event()

        def attempt() -> None:
            try:
                work()
                if given_up.is_set():
                    undo()
            except BaseException as error:
                failures.append(error)
            over.set()

        threading.Thread(target=attempt, name="fedkeel-ray", daemon=True).start()
        end = monotonic() + seconds
        try:
            while not over.wait(0.1):  # in small steps, so that an interruption is heard
                if monotonic() > end:
                    given_up.set()
                    return TimeoutError(f"no answer within {seconds:.0f} seconds")
        except BaseException:
            given_up.set()
            raise
        return failures[0] if failures else None

    @property
    def words(self) -> str:
        """What was found."""
        if self._folder is not None:
            return f"this machine with {self._found}"
        cpus = sum(node.resources.get("CPU", 0.0) for node in self.nodes)
        return f"{counted(len(self.nodes), 'machine')} with {cpus:g} CPUs ({self._name})"

    def alive(self) -> list[Node]:
        """The machines that are there now."""
        told = (node for node in self.ray.nodes() if node["Alive"])
        return [Node(node["NodeID"], node["NodeManagerAddress"], dict(node["Resources"])) for node in told]

    def room(self, resources: dict[str, float]) -> int:
        """How many workers fit into the machines when they are empty."""
        return sum(node.room(resources) for node in self.nodes)

    def free(self, resources: dict[str, float]) -> int:
        """How many workers fit into what others have left on each machine."""
        return sum(node.room(resources) for node in self.left())

    def left(self) -> list[Node]:
        """The machines with what others have left of them."""
        have = self.ray._private.state.available_resources_per_node()
        return [replace(node, resources=have.get(node.id, {})) for node in self.alive()]

    def has(self, wish: Wish) -> str:
        """What is free, in words."""
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        parts = [f"{free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs free"]
        if total.get("GPU") or wish.gpus:
            parts.append(f"{free.get('GPU', 0):g} of {total.get('GPU', 0):g} GPUs free")
        if wish.memory:
            parts.append(f"{free.get('memory', 0) / GB:.3g} of {total.get('memory', 0) / GB:.3g} GB free")
        return ", ".join(parts)

    def wait_for_room(self, wish: Wish, needed: int) -> int:
        """How many workers fit into what others have left; those of a run that has just ended leave a moment later."""
        begun, room = monotonic(), self.room(wish.resources)
        while (free := self.free(wish.resources)) < min(room, wish.workers or room):
            passed = monotonic() - begun
            if free >= needed and passed > LEAVE_SECONDS:
                break
            if passed > FULL_SECONDS:
                raise MishapError(
                    f"executor.kind=ray: the cluster is full, as others use it ({self.has(wish)}), and "
                    f"{counted(needed, 'worker')} of {wish.words} {'is' if needed == 1 else 'are'} needed, each on one "
                    "machine; try later, ask for fewer, or add machines"
                )
            sleep(_TICK)
        return free

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._ours:
            with _signals_later(self.ray), suppress(Exception):
                self.ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            self._held.close()


def _new_folder() -> tuple[Path, IO[bytes]]:
    """(A folder for Ray, the file in it by which it is held); those of processes that were killed are removed."""
    import fcntl

    home = Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir())  # Ray's sockets: a long path is refused
    for left in home.glob(f"{FOLDER}*/{_HELD}"):
        with suppress(OSError), left.open("rb") as file:  # somebody else's, or one that is in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=home))
    held = (folder / "new").open("wb")
    fcntl.flock(held, fcntl.LOCK_EX)
    os.rename(folder / "new", folder / _HELD)
    return folder, held


def _quietly() -> dict[str, Any]:
    return {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}


@contextmanager
def _signals_later(ray: Any) -> Iterator[None]:
    """SIGINT and SIGTERM wait until Ray has started or ended, so that nothing of it is left; a second one does not.

    Ray takes SIGTERM for itself when it starts; who stops a run decides what happens then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    utils, come = ray._private.utils, list[int]()
    take, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda _: None
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}

    def restore() -> None:
        utils.set_sigterm_handler = take
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        come.append(number)
        if len(come) > 1:
            restore()
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        restore()
    if come:
        signal.raise_signal(come[0])
