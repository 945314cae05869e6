"""When sites may remove what they kept: not before the run cannot go back to that time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedkeel.deploy.serving import _Settling
from fedkeel.record.folder import CHECKPOINTS


class Scene:
    """Rounds of a run with one client whose job in round n has the number n."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = folder / CHECKPOINTS
        self.packer = SimpleNamespace(after=dict[int, int](), settled=dict[int, int]())
        run: Any = SimpleNamespace(world=SimpleNamespace(packer=self.packer))
        where: Any = SimpleNamespace(path=folder)
        self._sink, self._round = _Settling(run, where), 0

    def round(self, checkpoint: int | None = None, gone: int | None = None) -> dict[int, int]:
        """One more round; then a checkpoint is written, perhaps of an earlier one, and one is removed."""
        self._round += 1
        self.packer.after = {0: self._round}
        end: Any = SimpleNamespace(round=self._round)
        self._sink.round(end)
        if checkpoint is not None:
            (self.checkpoints / f"round-{checkpoint}").mkdir(parents=True)
        if gone is not None:
            (self.checkpoints / f"round-{gone}").rmdir()
        settled: dict[int, int] = self.packer.settled
        return settled


def test_without_a_checkpoint_the_run_goes_back_to_its_start(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert [scene.round() for _ in range(5)] == [{}] * 5


def test_a_checkpoint_that_is_written_late_has_its_states(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(3):
        scene.round()
    assert scene.round(checkpoint=2) == {}
    assert scene.round() == {0: 2}
    assert scene.round(checkpoint=6) == {0: 2}
    assert scene.round(gone=2) == {0: 2}
    assert scene.round() == {0: 6}
