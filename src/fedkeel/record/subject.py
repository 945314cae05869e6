"""What the run folder records of the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkeel.config.experiment import Experiment
from fedkeel.config.usercode import GIVEN
from fedkeel.record import places


@dataclass(frozen=True)
class Subject:
    """A run, as far as its folder needs to know it."""

    experiment: Experiment
    identity: str = ""
    """What the run works on, beside the experiment: a checkpoint with another one is not used."""
    classes: tuple[type, ...] = ()
    """What the state of the run is made of, beside plain values and tensors."""
    beginning: Mapping[str, Any] = field(default_factory=dict)
    """What `run.json` holds of how the run began."""

    @property
    def folder_name(self) -> str:
        """A name that says what is inside."""
        e = self.experiment
        parts = (e.dataset.label, e.model.name, e.algorithm.label, f"seed{e.seed}")
        return e.name or "-".join(parts).replace(":", "_")

    def resumption(self, folder: Path) -> str:
        """The command or the call that resumes the run."""
        if self._given:
            return f"fedkeel.resume({str(folder)!r}, data=..., model=...)"
        return places.resumption(folder)

    def other_way(self, described: Path, earlier: bool) -> str:
        """What to do with a run that another version of fedkeel began and described in that file."""
        if not earlier:
            return "use that version of fedkeel"
        if self._given:
            call = f"fedkeel.run(fedkeel.Experiment.load({str(described)!r}), data=..., model=...)"
            return f"run it again from the start: {call}"
        return f"run it again from the start: fedkeel run {shlex.quote(str(described))}"

    @property
    def _given(self) -> bool:
        """Whether data or the model were handed over in Python."""
        return any(name.startswith(GIVEN) for name in (self.experiment.dataset.name, self.experiment.model.name))
