"""What a tracker has of a run, kept in the run folder, so that a resumed run continues the same log."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedkeel.errors import FedkeelError
from fedkeel.record.durable import PARTIAL


@dataclass(frozen=True)
class Known:
    """A run as its tracker knows it."""

    where: str
    """The place that holds the log, by the tracker's own address; empty if that is the run folder itself."""
    id: str
    """The name of the run there."""
    told: int = 0
    """The last round that was logged, where the tracker itself cannot be asked."""


class Memory:
    """The file `<tracker>.json` of a run folder; a run without a folder cannot be resumed and keeps nothing."""

    def __init__(self, folder: Path | None, tracker: str) -> None:
        self._path = None if folder is None else folder / f"{tracker}.json"
        self._known: Known | None = None

    def recall(self, where: str) -> Known | None:
        """What was kept, if it is about the same place."""
        if self._path is None or not self._path.exists():
            return None
        try:
            told: Any = json.loads(self._path.read_text(encoding="utf-8"))
            known = Known(str(told["where"]), str(told["id"]), int(told["told"]))
        except (OSError, ValueError, LookupError, TypeError):
            raise FedkeelError(f"{self._path} cannot be read; remove it to begin a new log") from None
        if known.where != where:
            return None
        self._known = known
        return known

    def keep(self, known: Known) -> None:
        """Write it down; a process that is killed meanwhile leaves the file as it was."""
        self._known = known
        if self._path is None:
            return
        partial = self._path.with_name(self._path.name + PARTIAL)
        partial.write_text(json.dumps(asdict(known)) + "\n", encoding="utf-8")
        os.replace(partial, self._path)

    def told(self, round: int) -> None:
        """Write down that a round was told."""
        assert self._known is not None
        self.keep(replace(self._known, told=round))
