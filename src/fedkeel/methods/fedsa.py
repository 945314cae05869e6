"""FedSA (after Chen, Mao and Ma, FGCS 2021): little work at first, then full jobs at rates that fall.

The paper's exact rules could not be found. Its idea is known: two stages, settings that change on both sides, and
staleness-aware mixing. The rules here are ours.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat

from fedkeel.methods.client import ClientRule
from fedkeel.methods.registry import method
from fedkeel.methods.server import Progress
from fedkeel.methods.staleness import Mixed, staleness_factor
from fedkeel.methods.types import Chance


class TwoStages(Mixed):
    """FedAsync's polynomial mixing, and jobs that depend on how far the run is.

    Stage 1 trains one epoch at lr. Stage 2, from version t1 = stage1 * planned updates on, trains all epochs at
    lr / (1 + decay (t - t1) / per_round).
    """

    stage1: Chance = 0.2
    """The share of the planned updates that belongs to stage 1, in which clients train one epoch."""
    decay: NonNegativeFloat = 0.1
    """How fast the learning rate falls in stage 2, per round's worth of updates."""
    a: NonNegativeFloat = 0.5
    """How fast the weight of an update falls with its staleness s: the factor is (s + 1) to the power of minus this."""

    def factor(self, staleness: int) -> float:
        return staleness_factor(staleness, "polynomial", self.a, 0)

    def work(self, epochs: int, lr: float, progress: Progress) -> tuple[int, float]:
        """Every update is a version, so the version says how far the run is."""
        since = progress.version - self.stage1 * progress.planned
        if since < 0:
            return 1, lr
        return epochs, lr / (1 + self.decay * since / progress.per_round)


fedsa = method(
    "fedsa",
    client=ClientRule,
    server=TwoStages,
    about="two stages of local work, staleness-aware mixing; the rules are ours",
    cite="idea of Chen et al., FGCS 2021",
)
