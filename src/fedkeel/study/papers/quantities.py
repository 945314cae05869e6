"""What tables and figures show about a run, and how it is read from the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedkeel.study.results import Outcome

Name = Literal[
    "accuracy %",
    "accuracy",
    "best accuracy %",
    "rounds to target",
    "virtual seconds to target",
    "seconds a round",
    "seconds to target",
    "training loss",
    "local accuracy %",
    "local spread",
    "bound D",
    "smoothness L",
    "Wasserstein distance",
]


@dataclass(frozen=True)
class Quantity:
    """How a number is read from a finished run, and written."""

    read: Callable[[Outcome], float | None]
    """None where the run does not have it, such as the rounds to a target that it did not reach."""
    digits: int
    of_target: bool = False
    """Whether a run without it did not reach its target."""

    def text(self, value: float) -> str:
        """With as many digits as the papers give."""
        return f"{value:,.{self.digits}f}"


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _wall_seconds(outcome: Outcome) -> float | None:
    """The rounds to the target, each as long as the median one: evaluations do not count."""
    each, rounds = outcome.summary.get("seconds_per_round_median"), outcome.rounds_to_target
    return None if each is None or rounds is None else float(each) * rounds


def _local(outcome: Outcome, key: str) -> float | None:
    found: dict[str, Any] = outcome.position.get("local_accuracy") or {}
    return _times(found.get(key), 100)


QUANTITIES: dict[Name, Quantity] = {
    "accuracy %": Quantity(lambda run: _times(run.value, 100), 2),
    "accuracy": Quantity(lambda run: run.value, 4),
    "best accuracy %": Quantity(lambda run: _times(run.best, 100), 2),
    "rounds to target": Quantity(lambda run: run.rounds_to_target, 1, of_target=True),
    "virtual seconds to target": Quantity(lambda run: run.seconds_to_target, 0, of_target=True),
    "seconds a round": Quantity(lambda run: run.summary.get("seconds_per_round_median"), 2),
    "seconds to target": Quantity(_wall_seconds, 1, of_target=True),
    "training loss": Quantity(lambda run: run.position.get("train_loss"), 4),
    "local accuracy %": Quantity(lambda run: _local(run, "mean"), 2),
    "local spread": Quantity(lambda run: _local(run, "std"), 2),
    "bound D": Quantity(lambda run: run.report.get("gradient_bound"), 1),
    "smoothness L": Quantity(lambda run: run.report.get("smoothness"), 0),
    "Wasserstein distance": Quantity(lambda _: None, 3),
}
"""By name; `Wasserstein distance` is computed from data alone, without a run."""
