"""Settings that may change when a run is resumed, as they change nothing in the rounds that were done."""

from __future__ import annotations

ENDS = ("rounds", "limit_seconds", "target", "target_accuracy", "stop_at_target")
"""They say when a run ends."""
AFTERWARDS = ("finetune",)
"""They say what is done when all rounds are over."""
ANY_TIME = ("limit_wall_seconds", "checkpoint", "name")
"""They make no difference to the result."""
ASIDE = (*ENDS, *AFTERWARDS, *ANY_TIME)
"""What a checkpoint may have otherwise than the experiment."""
CHANGEABLE = (*ENDS, *AFTERWARDS, "limit_wall_seconds", "checkpoint", "executor")
"""All that may change; of the executor, who does the work and where, but not in which stacks."""
