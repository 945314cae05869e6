"""What a client keeps between jobs, on the node's disk: whole or not at all, by job, so that a job can be repeated."""

from __future__ import annotations

import re
from pathlib import Path

from fedkeel.methods.types import Message as Tensors
from fedkeel.record.durable import PARTIAL, whole
from fedkeel.world.remote.envelope import EnvelopeError
from fedkeel.world.remote.message import Message

_NAME = re.compile(r"kept-([1-9][0-9]*)\.msg")


class KeptStates:
    """The states after a client's last jobs. The server says after which job the next one starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for partial in folder.glob(f"*{PARTIAL}"):  # a kill left it half-written
            partial.unlink()

    def after(self, job: int) -> Tensors | None:
        """The state after this job; None if it is not here, or is damaged."""
        try:
            return Message.unpack(self._path(job).read_bytes()).tensors
        except (FileNotFoundError, EnvelopeError):
            return None

    def put(self, job: int, kept: Tensors, settled: int) -> None:
        """The state after a job. The server will not go back to a time before it took in the job `settled`."""
        if not kept:
            return
        with whole(self._path(job)) as path:
            path.write_bytes(Message("kept", {"job": job}, kept).pack())
        for number in [each for each in self.jobs if each < settled]:
            self._path(number).unlink()

    @property
    def jobs(self) -> list[int]:
        """The jobs after which states are known."""
        return sorted(int(name[1]) for path in self._folder.iterdir() if (name := _NAME.fullmatch(path.name)))

    def _path(self, job: int) -> Path:
        return self._folder / f"kept-{job}.msg"
