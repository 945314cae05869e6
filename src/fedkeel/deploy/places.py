"""Where a deployment keeps what belongs to a run but is not a result, and who works there."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedkeel.deploy import identity
from fedkeel.errors import FedkeelError
from fedkeel.record.durable import whole
from fedkeel.record.lock import BusyError, is_held, lock

LOCK = "lock"
SERVING = "serving.lock"
"""Beside a run folder: locked by the server function, whoever started it."""
MEETING = "fedkeel-sites-"
"""Begins the name of a folder for sockets."""
_NEW = 60.0
"""Seconds in which a folder may not be locked yet."""


@dataclass(frozen=True)
class Beside:
    """The folder `RUN.deploy` beside the run folder `RUN`: Flower's database, its files, logs."""

    out: Path

    @property
    def folder(self) -> Path:
        """The folder itself."""
        return self.out.with_name(f"{self.out.name}.deploy")

    @property
    def database(self) -> Path:
        """What the SuperLink remembers."""
        return self.folder / "superlink.db"

    @property
    def home(self) -> Path:
        """Flower's own files."""
        return self.folder / "flower"

    @property
    def secret(self) -> Path:
        """By which the SuperLink knows the SuperExec."""
        return self.folder / "superexec.secret"

    @property
    def _nodes(self) -> Path:
        return self.folder / "nodes.json"

    def nodes(self) -> dict[str, int]:
        """By site whose key was registered: the number of its node, which belongs to that key."""
        if not self._nodes.exists():
            return {}
        return {str(site): int(node) for site, node in json.loads(self._nodes.read_text(encoding="utf-8")).items()}

    def add_nodes(self, nodes: Mapping[str, int]) -> None:
        """Write down more of them."""
        with whole(self._nodes) as path:
            path.write_text(json.dumps({**self.nodes(), **nodes}), encoding="utf-8")

    def log(self, name: str) -> Path:
        """The log of a program."""
        return self.folder / "logs" / f"{name}.log"

    def make(self) -> None:
        """Make what is missing."""
        identity.private_folder(self.folder)
        identity.private_folder(self.home)
        if not self.secret.exists():
            new_secret(self.secret)


def new_secret(path: Path) -> Path:
    """Make the file by which a SuperExec is known to who gives it tasks."""
    identity.place(path, secrets.token_hex(32).encode())
    return path


@contextmanager
def meeting_place() -> Iterator[Path]:
    """A private folder for sockets, with a short path: the system allows for about 107 characters.

    Those that killed processes have left are removed.
    """
    for left in Path("/tmp").glob(f"{MEETING}*"):
        with suppress(OSError):
            told = left.lstat()
            old = time.time() - told.st_mtime > _NEW
            if told.st_uid == os.getuid() and left.is_dir() and old and not is_held(left / LOCK):
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=MEETING, dir="/tmp") as made, alone(Path(made), made):
        yield Path(made)


@contextmanager
def alone(folder: Path, what: str, name: str = LOCK) -> Iterator[None]:
    """Be the only process that works in a folder, or that does what the lock of this name is for."""
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            lock(descriptor)
        except BusyError:
            raise FedkeelError(f"{what} is in use; wait until the other process has ended") from None
        yield
    finally:
        os.close(descriptor)
